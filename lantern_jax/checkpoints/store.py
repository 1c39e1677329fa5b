"""The library's own checkpoints: a directory with ``config.json`` and the arrays, laid out as orbax does.

    config.json     sizes, vocabulary, sampling defaults, metadata, sizes and checksums of the files in the folders
    arrays/         {"target", "tokenizer", "drafters", "neighbours", "codes"}: each optional but the target;
                    of drafters one a kind, {"eagle": ...}
    text_encoder/   {"text_encoder"}: read only when a caption must be encoded
    text/           the file of the text tokenizer

Axes: V codes, K neighbours, C channels of a code.
"""

import contextlib
import dataclasses
import filecmp
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax import errors
from lantern_jax.checkpoints import checksums
from lantern_jax.checkpoints.arrays import check_files, file_sizes, read_arrays, stored_shapes, write_arrays
from lantern_jax.checkpoints.bounds import check_counts, check_room
from lantern_jax.checkpoints.checkpoint import (
    PARTS,
    Checkpoint,
    are_shapes,
    check,
    check_fit,
    describe,
    describe_shapes,
)
from lantern_jax.checkpoints.checksums import FOLDERS
from lantern_jax.checkpoints.config_file import (
    codebook_shapes,
    config_json,
    drafter_configs,
    part_config,
    read_config,
)
from lantern_jax.checkpoints.old_layout import (
    ONE_DRAFTER_VERSION,
    current_names,
    current_shapes,
    old_names,
)
from lantern_jax.data.prompts import Vocabulary
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.files import check_link, check_no_brackets, check_writable, new_folder
from lantern_jax.models.drafters import drafter_kind
from lantern_jax.partition import Where
from lantern_jax.quantization import is_fixed, shapes_as

__all__ = [
    "Checkpoint",
    "check",
    "check_new",
    "demo_directory",
    "describe",
    "load",
    "load_drafter",
    "load_text_encoder",
    "model_directory",
    "save",
    "verify",
]

DTYPES = ("float16", "bfloat16", "float32")


def demo_directory() -> Path:
    """Where the demo checkpoint that ships with the package lies."""
    return Path(str(resources.files("lantern_jax") / "assets" / "demo"))


def model_directory(model: str | Path) -> Path:
    """Where the checkpoint called ``model`` lies: "demo", or a directory."""
    return demo_directory() if model == "demo" else Path(model)


def check_new(directory: str | Path, overwrite: bool) -> Path:
    """The path of a checkpoint that may be written: new, or with ``overwrite`` an old checkpoint; else ValueError.

    Folders above it that do not exist yet are made when it is written; the lowest that does must be writable.
    """
    directory = Path(directory)
    check_no_brackets(directory)
    if directory.exists() and not overwrite:
        raise ValueError(f"{directory} exists: name a new folder or allow overwriting")
    if directory.exists() and not (directory / "config.json").is_file():
        raise ValueError(f"{directory} exists and is not a checkpoint: name another folder")
    check_link(directory)
    check_writable(next(parent for parent in directory.absolute().parents if parent.exists()))
    return directory


def save(
    directory: str | Path,
    checkpoint: Checkpoint,
    *,
    overwrite: bool = False,
    dtype: Any = None,
    report: Callable[[int], None] = lambda _: None,
) -> Path:
    """Writes a checkpoint, reads back what it wrote and compares; a crash leaves nothing under the final name.

    Args:
        directory: new, unless ``overwrite``.
        dtype: float16, bfloat16 or float32, of all stored parameters; None keeps each as it is. Codes stay
            float32.
        report: called with the number of bytes written since the last call.

    Raises:
        ValueError: the directory exists, its path has a bracket in it, the checkpoint is abstract, parameters do not
            fit their configs, parts of the checkpoint do not fit each other, or values that ``dtype`` cannot hold.
        OSError: the disk does not hold what was written.
    """
    directory = check_new(directory, overwrite)
    if dtype is not None and jnp.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype {jnp.dtype(dtype).name} is not valid: give one of {', '.join(DTYPES)}")
    held = checkpoint.target_params, [params for _, params in checkpoint.drafters.values()]
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(held)):
        raise ValueError("the checkpoint holds shapes in place of parameters: read it with store.load first")
    if checkpoint.text_encoder_config is not None and checkpoint.text_encoder_params is None:
        checkpoint = dataclasses.replace(checkpoint, text_encoder_params=load_text_encoder(checkpoint, dtype))
    check(checkpoint)
    with new_folder(directory) as temporary, _named_by(directory, temporary):
        arrays = _stored_arrays(checkpoint, dtype)
        text_encoder = arrays.pop("text_encoder", None)
        write_arrays(temporary / "arrays", arrays, report)
        if text_encoder is not None:
            write_arrays(temporary / "text_encoder", {"text_encoder": text_encoder}, report)
        if checkpoint.text_tokenizer is not None:
            (temporary / "text").mkdir()
            copy = temporary / "text" / checkpoint.text_tokenizer.name
            shutil.copyfile(checkpoint.text_tokenizer, copy)
            if not filecmp.cmp(checkpoint.text_tokenizer, copy, shallow=False):
                raise OSError(f"{copy} does not hold what was written to it: the disk may be full or failing")
        folders = {entry: temporary / folder for folder, entry in FOLDERS.items()}
        sizes = {entry: file_sizes(folder) for entry, folder in folders.items() if folder.is_dir()}
        config = checksums.with_checksums(config_json(checkpoint) | sizes, temporary)
        (temporary / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return directory


@contextlib.contextmanager
def _named_by(directory: Path, temporary: Path) -> Iterator[None]:
    """What cannot be written below a temporary name is said of the one that was given."""
    try:
        yield
    except OSError as error:
        # Of ours a line, of the system's a reason and a file.
        why = (
            str(error)
            if error.strerror is None
            else errors.unwritable(error.filename or str(directory), error, "folder")
        )
        raise OSError(why.replace(str(temporary), str(directory))) from None


def load(
    directory: str | Path,
    dtype: Any = jnp.float32,
    sharding: Where | None = None,
    *,
    abstract: bool = False,
    drafters: Iterable[str] | None = None,
) -> Checkpoint:
    """Reads a checkpoint, without the parameters of its text encoder.

    Args:
        dtype: of the target's and drafters' parameters; None keeps what is stored. The tokenizer's are float32.
        sharding: where JAX arrays go, straight from the files; None for NumPy arrays on the host.
        abstract: read no values: shapes and stored dtypes stand in for arrays.
        drafters: the kinds to read of those it holds; of the others shapes and stored dtypes stand in for arrays.
            None is all.

    Directories of older versions (``old_layout.py``) are read too; kernels in the old layout pass through the host's
    memory.

    Raises:
        ValueError: one line: the directory is missing, no checkpoint, damaged, or holds arrays that do not fit
            its config (missing, unexpected and misshapen ones are listed; nothing large has been read then).
    """
    directory = Path(directory)
    config = read_config(directory)
    for folder, entry in FOLDERS.items():
        if folder == "arrays" or entry in config:
            check_files(directory / folder, config.get(entry))
    checksums.check_files(directory, config, [f"text/{name}" for name in config.get("text_files", ())])
    configs = {part: part_config(directory, config, part) for part in PARTS}
    drafting = drafter_configs(directory, config, configs["target"])
    if (configs["text_encoder"] is None) != ("text_encoder_files" not in config):
        raise errors.damaged(directory / "config.json")
    stored = _stored_shapes(directory, config, "arrays")
    held = {**stored, **_named(stored.get("drafters"))}
    for part, made in (configs | drafting).items():
        if part != "text_encoder":
            check_counts(directory / "config.json", part, made, held.get(part, {}))
    expected = codebook_shapes(directory, config, configs["target"])
    expected |= _shapes(configs, ("target", "tokenizer"))
    expected |= _drafter_shapes(drafting)
    arrays = _check_shapes(directory, stored, expected)
    stored = arrays.pop("drafters", {})
    if not abstract:
        wanted = {kind: stored[kind] for kind in (stored if drafters is None else drafters) if kind in stored}
        shapes = arrays | ({"drafters": wanted} if wanted else {})
        arrays = _read(directory, config, shapes, dtype, sharding)
        stored |= arrays.pop("drafters", {})
    codebook = None
    if "neighbours" in arrays:
        codebook = Codebook(neighbours=arrays["neighbours"], codes=arrays["codes"])
    vocabulary = config.get("vocabulary")
    text = [directory / "text" / name for name in config.get("text_files", ())]
    checkpoint = Checkpoint(
        model=config["model"],
        target_config=configs["target"],
        target_params=arrays["target"],
        tokenizer_config=configs["tokenizer"],
        tokenizer_params=arrays.get("tokenizer"),
        drafters={kind: (drafting[kind], stored[kind]) for kind in drafting},
        text_encoder_config=configs["text_encoder"],
        text_tokenizer=text[0] if text else None,
        codebook=codebook,
        vocabulary=None if vocabulary is None else Vocabulary.from_json(vocabulary),
        defaults=config.get("defaults", {}),
        metadata=config.get("metadata", {}),
        directory=directory,
    )
    check_fit(checkpoint)
    return checkpoint


def verify(directory: str | Path) -> int | None:
    """Reads every file of a checkpoint; how many bytes are as they were written, or None where it has no checksums.

    Raises:
        ValueError: as ``load``; or one line that names a file that is not as it was written.
    """
    directory = Path(directory)
    load(directory, abstract=True)
    config = read_config(directory)
    names = checksums.listed(config)
    checksums.check_files(directory, config, names, again=True)
    return sum((directory / name).stat().st_size for name in names) if checksums.SUMS in config else None


def load_drafter(
    checkpoint: Checkpoint,
    kind: str,
    dtype: Any = jnp.float32,
    sharding: Where | None = None,
) -> PyTree:
    """The parameters of a checkpoint's drafter of one kind, from memory or from the folder it was read from.

    Args:
        dtype, sharding: as in ``load``, of what is read from the folder. Parameters in memory are returned as they are.

    Raises:
        ValueError: the checkpoint has no such drafter, or its folder is damaged.
    """
    if kind not in checkpoint.drafters:
        raise ValueError(
            f"this checkpoint has no {kind} drafter: add one with `lantern convert drafter` or train.export"
        )
    _, params = checkpoint.drafters[kind]
    if not are_shapes(params):
        return params
    # What is in the folder was checked when its shapes were read; they may be stored in the old layout.
    shapes = {"drafters": {kind: params}}
    config = read_config(checkpoint.directory)
    return _read(checkpoint.directory, config, shapes, dtype, sharding)["drafters"][kind]


def load_text_encoder(
    checkpoint: Checkpoint, dtype: Any = jnp.float32, sharding: Where | None = None
) -> PyTree:
    """The parameters of a checkpoint's text encoder, from memory or from the folder it was read from.

    Args:
        dtype: of what is read from the folder; None keeps what is stored. Parameters in memory are returned as they
            are.
        sharding: as in ``load``, of what is read from the folder.

    Raises:
        ValueError: the checkpoint has no text encoder, or its folder is damaged.
    """
    if checkpoint.text_encoder_params is not None:
        return checkpoint.text_encoder_params
    if checkpoint.text_encoder_config is None or checkpoint.directory is None:
        raise ValueError("this checkpoint has no text encoder: convert it with --t5, or give encoded prompts")
    directory, encoder = checkpoint.directory, checkpoint.text_encoder_config
    config = read_config(directory)
    stored = _stored_shapes(directory, config, "text_encoder")
    check_counts(directory / "config.json", "text_encoder", encoder, stored)
    shapes = _check_shapes(directory, stored, _shapes({"text_encoder": encoder}, ("text_encoder",)))
    read = read_arrays(
        directory / "text_encoder", {"text_encoder": dtype}, sharding, shapes, _check_of(directory, config)
    )
    return read["text_encoder"]


def _named(tree: PyTree) -> Mapping[str, PyTree]:
    """The branches of a tree; none where it is missing or an array."""
    return tree if isinstance(tree, Mapping) else {}


def _shapes(configs: Mapping[str, Any], parts: tuple[str, ...]) -> dict[str, PyTree]:
    return {part: PARTS[part](configs[part]) for part in parts if configs[part] is not None}


def _drafter_shapes(configs: Mapping[str, Any]) -> dict[str, PyTree]:
    shapes = {kind: drafter_kind(kind).shapes(config) for kind, config in configs.items()}
    return {"drafters": shapes} if shapes else {}


def _stored_shapes(directory: Path, config: Mapping[str, Any], folder: str) -> PyTree:
    """What the files of a folder say that they hold; they are few bytes, and read before the others."""
    names = [name for name in checksums.listed(config) if name.startswith(f"{folder}/")]
    checksums.check_files(directory, config, [name for name in names if "/d/" not in name])
    stored = stored_shapes(directory / folder)
    check_room(directory / folder, stored, config[FOLDERS[folder]])
    return current_names(stored)


def _check_shapes(directory: Path, stored: PyTree, expected: PyTree) -> PyTree:
    """The stored dtypes with the expected shapes, which may be stored in the old layout; else ValueError."""
    if "target" in expected:
        expected = expected | {"target": shapes_as(expected["target"], stored.get("target", {}))}
    stored = current_shapes(stored, expected)
    mismatch = describe_shapes(stored, expected)
    if mismatch:
        why = errors.printable(mismatch, 10_000)
        raise ValueError(f"{directory} does not fit its config.json: {why}; fetch or convert it again")
    return stored


def _check_of(directory: Path, config: Mapping[str, Any]) -> Callable[[Path], None]:
    """What compares the files of one pack with their checksums."""

    def check_pack(pack: Path) -> None:
        start = f"{pack.relative_to(directory).as_posix()}/"
        names = [name for name in checksums.listed(config) if name.startswith(start)]
        checksums.check_files(directory, config, names)

    return check_pack


def _read(
    directory: Path, config: Mapping[str, Any], shapes: PyTree, dtype: Any, sharding: Where | None
) -> dict[str, PyTree]:
    """The arrays that ``shapes`` names, and no others, of the folder ``arrays``."""
    dtypes = dict.fromkeys(("target", "drafters", "drafter"), dtype)
    dtypes |= {"tokenizer": jnp.float32, "codes": jnp.float32, "neighbours": jnp.int32}
    if config["version"] == ONE_DRAFTER_VERSION:
        shapes = old_names(shapes)
    read = read_arrays(directory / "arrays", dtypes, sharding, shapes, _check_of(directory, config))
    return current_names(read)


def _stored_arrays(checkpoint: Checkpoint, dtype: Any) -> dict[str, PyTree]:
    arrays = {}
    held = {part: getattr(checkpoint, f"{part}_params") for part in PARTS}
    held["drafters"] = {kind: params for kind, (_, params) in checkpoint.drafters.items()} or None
    for part, params in held.items():
        if params is not None:
            arrays[part] = jax.tree_util.tree_map_with_path(
                lambda path, leaf, part=part: _narrow(part, path, leaf, dtype), params
            )
    if checkpoint.codebook is not None:
        neighbours = np.asarray(checkpoint.codebook.neighbours)
        small = neighbours.size == 0 or (neighbours.min() >= 0 and neighbours.max() < 1 << 16)
        arrays["neighbours"] = neighbours.astype(np.uint16 if small else np.int32)
        arrays["codes"] = np.asarray(checkpoint.codebook.codes, np.float32)
    return arrays


def _narrow(part: str, path: tuple, leaf: Any, dtype: Any) -> np.ndarray:
    leaf = np.asarray(leaf)
    with np.errstate(over="ignore"):
        narrow = leaf if dtype is None or is_fixed(path, leaf.dtype) else leaf.astype(jnp.dtype(dtype))
    if not np.isfinite(narrow.astype(np.float32)).all():
        name = f"{part}{jax.tree_util.keystr(path)}"
        raise ValueError(
            f"{name} holds values that are not finite in {narrow.dtype.name}: store another dtype or retrain"
        )
    return narrow
