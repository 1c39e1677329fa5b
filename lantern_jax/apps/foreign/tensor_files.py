"""Opening files of published tensors: PyTorch's formats and safetensors, whole or in shards.

Only names, shapes and dtypes are read until a tensor is asked for, and then that tensor alone, so a large checkpoint
takes only the memory of what its reader keeps. Code from a file is never run.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from lantern_jax.apps.foreign.torch_files import open_torch
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file
from lantern_jax.tensors.safetensors_files import INDEX_SUFFIX, open_safetensors, open_sharded
from lantern_jax.tensors.stored_tensor import StoredTensor

_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_SUFFIXES = (".safetensors", *_TORCH_SUFFIXES)
# The usual names of weights in a folder of the Hugging Face hub, the preferred ones first.
_USUAL_NAMES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
_GIVE = "give a .safetensors, .pt, .pth, .bin or .ckpt file, the index of a sharded one, or their folder"


def open_tensors(path: str | Path, weights: str | None = None) -> dict[str, StoredTensor]:
    """Opens a tensor file, a sharded checkpoint or a folder that holds either, as {name: tensor, not yet read}.

    A sharded checkpoint is given by its index (``model.safetensors.index.json``). In a folder, the Hugging Face names
    come first, then the only tensor file. bfloat16 tensors come out as ``ml_dtypes.bfloat16``.

    Args:
        weights: which of a PyTorch file's sets of tensors, such as "ema" (``open_torch``).

    Raises:
        LanternError: a file is missing, truncated, not a tensor file, or a pickle that wants to run code; a folder
            holds none or too many; an index and its shards do not agree. Reading a tensor may raise it too.
    """
    path = Path(path)
    if path.is_dir():
        path = path / choose_weights((file.name for file in path.iterdir() if file.is_file()), path)
    if not path.is_file():
        raise LanternError(f"{path} is not a file: {_GIVE}")
    if path.name.endswith(INDEX_SUFFIX):
        return open_sharded(path, partial(_open_file, weights=weights))
    return _open_file(path, weights)


def choose_weights(names: Iterable[str], folder: str | Path) -> str:
    """Returns the name of the file that holds the weights, or of their shards' index, among a folder's files.

    Args:
        names: the files' names, without the folder.
        folder: what to call it in an error.

    Raises:
        LanternError: the folder holds no tensor file, or several of which none is the usual one.
    """
    names = sorted(names)
    for name in _USUAL_NAMES:
        if name in names:
            return name
    found = [name for name in names if name.endswith(INDEX_SUFFIX)] or [
        name for name in names if Path(name).suffix in _SUFFIXES
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise LanternError(f"{folder} holds no tensor file: {_GIVE}")
    shown = errors.listed(found)
    advice = "fetch the index too" if "-of-" in shown else "name one of them"
    raise LanternError(f"{folder} holds {len(found)} tensor files ({shown}): {advice}")


def _open_file(path: Path, weights: str | None = None) -> dict[str, StoredTensor]:
    if path.suffix not in _SUFFIXES:
        raise LanternError(f"{path} has an unknown suffix: {_GIVE}")
    try:
        with open_file(path) as file:
            pointer = file.read(24) == b"version https://git-lfs."
        if pointer:
            raise LanternError(f"{path} is a pointer to a file, not the file: fetch it with `git lfs pull`")
        return open_safetensors(path) if path.suffix == ".safetensors" else open_torch(path, weights)
    except OSError as error:
        raise LanternError(
            f"{path} cannot be read ({errors.short(error)}): fetch it again or name another"
        ) from error
