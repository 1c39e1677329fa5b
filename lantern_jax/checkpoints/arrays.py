"""A tree of arrays in a folder, through orbax: written compactly, inspected and read with one-line errors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

# Orbax's marks of a finished write, with paths and times of the machine that wrote: the caller's rename takes
# their place.
_MARKS = ("commit_success.txt", "_CHECKPOINT_METADATA")


def write_arrays(directory: Path, arrays: PyTree) -> None:
    """Writes a nested dict of NumPy arrays into a new folder."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=False)) as writer:
        writer.save(directory.absolute(), args=ocp.args.PyTreeSave(arrays))
    for name in _MARKS:
        (directory / name).unlink(missing_ok=True)


def file_sizes(directory: Path) -> dict[str, int]:
    """{name relative to the folder: bytes} of all files in it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}


def check_files(directory: Path, sizes: Any) -> None:
    """Raises ValueError, one line, unless the folder has every file of ``sizes`` in its whole length."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise ValueError(
            f"{directory}: config.json does not list its files: fetch or convert the checkpoint again"
        )
    if not directory.is_dir():
        raise ValueError(f"{directory} is missing: fetch or convert the checkpoint again")
    found = file_sizes(directory)
    wrong = [f"{name} is missing" for name in sizes if name not in found]
    wrong += [
        f"{name} has {found[name]} bytes, expected {size}"
        for name, size in sizes.items()
        if name in found and found[name] != size
    ]
    if wrong:
        raise ValueError(
            f"{directory} is damaged ({'; '.join(wrong)}): fetch or convert the checkpoint again"
        )


def stored_shapes(directory: Path) -> PyTree:
    """The tree with a ``.shape`` in place of every array.

    Raises:
        ValueError: the folder is damaged.
    """
    return _guarded(directory, lambda handler: handler.metadata(directory.absolute()).tree)


def read_arrays(directory: Path, expected: PyTree, dtypes: Mapping[str, Any]) -> PyTree:
    """The arrays as NumPy arrays.

    Args:
        expected: the tree, anything in place of the arrays.
        dtypes: dtype of the arrays under a top-level key; those of other keys are as stored.

    Raises:
        ValueError: the folder is damaged.
    """
    arguments = {
        part: jax.tree.map(lambda _, part=part: ocp.RestoreArgs(np.ndarray, dtypes.get(part)), tree)
        for part, tree in expected.items()
    }

    def read(handler):
        template = jax.tree.map(lambda _: 0, expected)
        return handler.restore(
            directory.absolute(), args=ocp.args.PyTreeRestore(item=template, restore_args=arguments)
        )

    return _guarded(directory, read)


def _guarded(directory: Path, action) -> Any:
    handler = ocp.PyTreeCheckpointHandler()
    try:
        return action(handler)
    # Orbax and tensorstore raise many kinds of errors on damaged files, none of them their own.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{directory} is damaged ({lines[0][:160]}): fetch or convert the checkpoint again"
        ) from error
    finally:
        handler.close()
