"""The library's own checkpoints: a directory that any tool opens.

    config.json                sizes, vocabulary, sampling defaults, metadata, the other files with sizes and checksums
    model.safetensors          the arrays by their paths: "target.params. ...", and if there are any
                               "tokenizer. ...", "drafters.eagle. ..." (one per kind), "neighbours" and "codes"
    text_encoder.safetensors   "text_encoder. ...": read only when a caption must be encoded
    text/                      the file of the text tokenizer

More than five gigabytes of arrays are split into model-00001-of-00002.safetensors and so on, beside the index
model.safetensors.index.json. A drafter's token table that equals the target's is not stored again: "shared" in
config.json names the one it equals.

Axes: V codes, K neighbours, C channels of a code.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from lantern_jax.checkpoints.arrays import name_of, read_arrays, write_arrays
from lantern_jax.checkpoints.checkpoint import PARTS, Checkpoint, are_shapes, check, check_fit, sized
from lantern_jax.checkpoints.configs import Configs, config_json
from lantern_jax.checkpoints.folder import FILES, SHARED, Folder, described, is_ours
from lantern_jax.checkpoints.hub import fetch
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.devices.partition import Where
from lantern_jax.devices.platform import check_dtype
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import check_new_folder, new_folder
from lantern_jax.models.quantization import is_fixed
from lantern_jax.tensors.checksums import CONFIG
from lantern_jax.tensors.hub import REPOSITORY, files_in
from lantern_jax.tensors.matching import describe_mismatch
from lantern_jax.tensors.stored_tensor import StoredTensor

# The name of a token table in its module.
_TABLE = "embedding"


def demo_directory() -> Path:
    """Returns the directory of the demo checkpoint that ships with the package."""
    return Path(str(resources.files("lantern_jax") / "assets" / "demo"))


def model_directory(model: str | Path) -> Path:
    """Returns the directory of the checkpoint ``model``: "demo", a directory, or "owner/name" or "owner/name@revision"
    on the Hugging Face hub, which is fetched unless there is a local directory of that name.

    Raises:
        LanternError: one line: the hub does not have it or cannot be reached.
    """
    found = REPOSITORY.fullmatch(model) if isinstance(model, str) else None
    if found is None or os.path.lexists(model):
        return demo_directory() if model == "demo" else Path(model)
    try:
        return fetch(found["repo"], found["revision"])
    except LanternError as error:
        raise type(error)(f"{model} is not a directory here, and {error}") from error


def check_new(directory: str | Path, overwrite: bool) -> Path:
    """Returns the path for a checkpoint: new or, with ``overwrite``, an old checkpoint's; else raises LanternError.

    Missing folders above it are made when it is written; the lowest existing one must be writable.
    """
    directory = Path(directory)
    check_new_folder(directory, overwrite, with_parents=True)
    if directory.exists() and not is_ours(directory):
        raise LanternError(f"{directory} exists and is not a checkpoint of this library: name another folder")
    return directory


def save(
    directory: str | Path,
    checkpoint: Checkpoint,
    *,
    overwrite: bool = False,
    dtype: Any = None,
    report: Callable[[int], None] = lambda _: None,
) -> Path:
    """Writes a checkpoint; a crash leaves nothing under the final name.

    The same checkpoint yields the same bytes.

    Args:
        directory: new, unless ``overwrite``.
        dtype: float16, bfloat16 or float32, of all stored parameters; None keeps each as it is. Codes stay
            float32.
        report: called with the number of bytes written since the last call.

    Raises:
        LanternError: the directory exists, the checkpoint is abstract, parameters do not fit their configs, parts of
            the checkpoint do not fit each other, defaults or metadata are not valid JSON, or ``dtype`` cannot hold some
            values.
        OSError: one line: it cannot be written.

    Example:
        >>> import tempfile
        >>> from lantern_jax.checkpoints.store import demo_directory, load
        >>> path = lantern_jax.save(f"{tempfile.mkdtemp()}/copy", load(demo_directory()), dtype="bfloat16")
        >>> sorted(file.name for file in path.iterdir())
        ['config.json', 'model.safetensors']
    """
    directory = check_new(directory, overwrite)
    if dtype is not None:
        check_dtype(dtype)
    held = checkpoint.target_params, [params for _, params in checkpoint.drafters.values()]
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(held)):
        raise LanternError(
            "the checkpoint holds shapes in place of parameters: read it with store.load first"
        )
    if checkpoint.text_encoder_config is not None and checkpoint.text_encoder_params is None:
        checkpoint = dataclasses.replace(checkpoint, text_encoder_params=load_text_encoder(checkpoint, dtype))
    check(checkpoint)
    try:
        json.dumps(config_json(checkpoint), allow_nan=False)
    except (TypeError, ValueError) as error:
        why = errors.short(error)
        raise LanternError(
            f"defaults or metadata are not valid JSON ({why}): give finite Python numbers"
        ) from None
    with new_folder(directory) as temporary:
        _write(temporary, checkpoint, dtype, report)
    return directory


def _write(directory: Path, checkpoint: Checkpoint, dtype: Any, report: Callable[[int], None]) -> None:
    arrays, shared = _without_shared(_stored_arrays(checkpoint, dtype))
    encoder = {name: arrays.pop(name) for name in ("text_encoder",) if name in arrays}
    write_arrays(directory, "model", arrays, report)
    if encoder:
        write_arrays(directory, "text_encoder", encoder, report)
    if checkpoint.text_tokenizer is not None:
        (directory / "text").mkdir()
        shutil.copyfile(checkpoint.text_tokenizer, directory / "text" / checkpoint.text_tokenizer.name)
    files = {name: described(directory / name) for name in files_in(directory)}
    config = config_json(checkpoint) | ({SHARED: shared} if shared else {}) | {FILES: files}
    (directory / CONFIG).write_text(json.dumps(config, indent=1) + "\n")


def load_shapes(directory: str | Path) -> Checkpoint:
    """Returns a checkpoint with shapes and stored dtypes in place of its arrays; raises LanternError as ``load``."""
    return _open(directory)[2]


def load(
    directory: str | Path,
    dtype: Any = jnp.float32,
    sharding: Where | None = None,
    *,
    drafters: Iterable[str] | None = None,
    streamed: bool = False,
) -> Checkpoint:
    """Reads a checkpoint, without the parameters of its text encoder.

    Args:
        dtype: of the target's and drafters' parameters; the tokenizer's are then float32. None keeps all as stored.
        sharding: where JAX arrays go, straight from the files; None for NumPy arrays on the host.
        drafters: the kinds of drafters to read; for the others, shapes and stored dtypes stand in for arrays. None
            reads all.
        streamed: whether arrays stay in their files, to be read one at a time as another checkpoint is written; as
            stored, without ``dtype`` and ``sharding``.

    Raises:
        LanternError: the directory is missing, is not a checkpoint, is damaged, or holds arrays that do not fit its
            config (missing, unexpected and misshapen ones are listed before anything large is read).
    """
    _, tensors, checkpoint = _open(directory)
    shapes = {part: params for part in PARTS if (params := getattr(checkpoint, f"{part}_params")) is not None}
    kinds = (
        checkpoint.drafters
        if drafters is None
        else [kind for kind in drafters if kind in checkpoint.drafters]
    )
    if kinds:
        shapes["drafters"] = {kind: checkpoint.drafters[kind][1] for kind in kinds}
    if checkpoint.codebook is not None:
        shapes |= {name: getattr(checkpoint.codebook, name) for name in ("neighbours", "codes")}
    if streamed:
        arrays = jax.tree_util.tree_map_with_path(lambda path, _: tensors[name_of(path)], shapes)
    else:
        arrays = _read(tensors, shapes, dtype, sharding)
    read = arrays.get("drafters", {})
    return dataclasses.replace(
        checkpoint,
        target_params=arrays["target"],
        tokenizer_params=arrays.get("tokenizer"),
        drafters={
            kind: (config, read.get(kind, params)) for kind, (config, params) in checkpoint.drafters.items()
        },
        codebook=_codebook(arrays),
    )


def _open(directory: str | Path) -> tuple[Folder, dict[str, StoredTensor], Checkpoint]:
    """Returns a checkpoint as ``load_shapes`` does, after its folder and its stored tensors by name."""
    folder = Folder.of(directory)
    tensors, text = folder.arrays("model"), folder.names("text/")
    configs = Configs.of(folder)
    shapes = _stored(folder, tensors, configs.shapes(tensors))
    stored = shapes.get("drafters", {})
    checkpoint = Checkpoint(
        model=folder.config["model"],
        target_config=configs.target,
        target_params=shapes["target"],
        tokenizer_config=configs.tokenizer,
        tokenizer_params=shapes.get("tokenizer"),
        drafters={kind: (config, stored[kind]) for kind, config in configs.drafters.items()},
        text_encoder_config=configs.text_encoder,
        text_tokenizer=folder.path / text[0] if text else None,
        codebook=_codebook(shapes),
        vocabulary=configs.vocabulary,
        defaults=folder.config.get("defaults", {}),
        metadata=folder.config.get("metadata", {}),
        directory=folder.path,
    )
    check_fit(checkpoint)
    return folder, tensors, checkpoint


def _codebook(arrays: Mapping[str, Any]) -> Codebook | None:
    return Codebook(arrays["neighbours"], arrays["codes"]) if "neighbours" in arrays else None


def opened(model: str | Path, size: str | None = None) -> Checkpoint:
    """Returns a checkpoint without parameters, by its name; raises LanternError as ``model_directory``, ``load`` and
    ``sized``.
    """
    return sized(load_shapes(model_directory(model)), size)


def verify(directory: str | Path) -> int:
    """Reads and verifies every file of a checkpoint; returns how many bytes are as they were written.

    Raises:
        LanternError: as ``load``; or one line that names a file that is not as it was written.
    """
    return _open(directory)[0].verify()


def load_drafter(
    checkpoint: Checkpoint,
    kind: str,
    dtype: Any = jnp.float32,
    sharding: Where | None = None,
) -> PyTree:
    """Returns the parameters of a checkpoint's drafter of one kind, from memory or from the folder it was read from.

    Args:
        dtype, sharding: as in ``load``, for parameters read from the folder. Those in memory are returned as they are.

    Raises:
        LanternError: the checkpoint has no such drafter, or its folder is damaged.
    """
    if kind not in checkpoint.drafters:
        raise LanternError(
            f"this checkpoint has no {kind} drafter: add one with `lantern convert drafter` or train.export"
        )
    _, params = checkpoint.drafters[kind]
    if not are_shapes(params):
        return params
    folder = Folder.of(checkpoint.directory)
    tensors = folder.arrays("model")
    held = {name: tensor for name, tensor in tensors.items() if name.startswith(f"drafters.{kind}.")}
    shapes = _stored(folder, held, {"drafters": {kind: params}})
    return _read(held, shapes, dtype, sharding)["drafters"][kind]


def load_text_encoder(
    checkpoint: Checkpoint, dtype: Any = jnp.float32, sharding: Where | None = None
) -> PyTree:
    """Returns the parameters of a checkpoint's text encoder, from memory or from the folder it was read from.

    Args:
        dtype: of parameters read from the folder; None keeps the stored one. Those in memory are returned as they are.
        sharding: as in ``load``, for parameters read from the folder.

    Raises:
        LanternError: the checkpoint has no text encoder, or its folder is damaged.
    """
    if checkpoint.text_encoder_params is not None:
        return checkpoint.text_encoder_params
    if checkpoint.text_encoder_config is None or checkpoint.directory is None:
        raise LanternError(
            "this checkpoint has no text encoder: convert it with --t5, or give encoded prompts"
        )
    folder = Folder.of(checkpoint.directory)
    tensors = folder.arrays("text_encoder")
    wanted = {"text_encoder": PARTS["text_encoder"](checkpoint.text_encoder_config)}
    shapes = _stored(folder, tensors, wanted)
    return _read(tensors, shapes, dtype, sharding)["text_encoder"]


def _stored(folder: Folder, tensors: Mapping[str, StoredTensor], expected: PyTree) -> PyTree:
    """Returns the expected tree with the stored dtypes; raises LanternError if other arrays are stored."""
    leaves = {name_of(path): leaf.shape for path, leaf in jax.tree_util.tree_flatten_with_path(expected)[0]}
    mismatch = describe_mismatch({name: tensor.shape for name, tensor in tensors.items()}, leaves)
    if mismatch:
        why = errors.printable(mismatch, 10_000)
        raise LanternError(f"{folder.path} does not fit its config.json: {why}; fetch or convert it again")
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.ShapeDtypeStruct(leaf.shape, tensors[name_of(path)].dtype), expected
    )


def _read(
    tensors: Mapping[str, StoredTensor],
    shapes: PyTree,
    dtype: Any,
    sharding: Where | None,
) -> dict[str, PyTree]:
    """Reads the arrays that ``shapes`` names, and no others."""
    dtypes = dict.fromkeys(("target", "drafters", "text_encoder"), dtype)
    dtypes |= {
        "tokenizer": None if dtype is None else jnp.float32,
        "codes": jnp.float32,
        "neighbours": jnp.int32,
    }
    return read_arrays(tensors, shapes, dtypes, sharding)


def _stored_arrays(checkpoint: Checkpoint, dtype: Any) -> dict[str, PyTree]:
    """Returns the arrays that go into files; parameters are cast only as they are written."""
    arrays: dict[str, PyTree] = {}
    held = {part: getattr(checkpoint, f"{part}_params") for part in PARTS}
    held["drafters"] = {kind: params for kind, (_, params) in checkpoint.drafters.items()} or None
    for part, params in held.items():
        if params is not None:
            arrays[part] = jax.tree_util.tree_map_with_path(partial(_narrow, part, dtype), params)
    if checkpoint.codebook is not None:
        neighbours = np.asarray(checkpoint.codebook.neighbours)
        small = neighbours.size == 0 or (neighbours.min() >= 0 and neighbours.max() < 1 << 16)
        arrays["neighbours"] = neighbours.astype(np.uint16 if small else np.int32)
        arrays["codes"] = np.asarray(checkpoint.codebook.codes, np.float32)
    return arrays


def _without_shared(arrays: dict[str, PyTree]) -> tuple[dict[str, PyTree], dict[str, str]]:
    """Returns the arrays without drafters' tables that equal the target's, and {such a table's name: the target's}."""
    target, drafters = flatten_dict({"target": arrays["target"]}), flatten_dict(arrays.get("drafters", {}))
    tables = {path: leaf for path, leaf in target.items() if path[-1] == _TABLE}
    same = {
        path: other
        for path, leaf in drafters.items()
        for other, table in tables.items()
        if path[-1] == _TABLE
        and (leaf.shape, leaf.dtype) == (table.shape, table.dtype)
        and np.array_equal(leaf.read(), table.read())
    }
    if not same:
        return arrays, {}
    own = {path: leaf for path, leaf in drafters.items() if path not in same}
    shared = {".".join(("drafters", *path)): ".".join(other) for path, other in same.items()}
    return arrays | {"drafters": unflatten_dict(own)}, shared


def _narrow(part: str, dtype: Any, path: tuple, leaf: Any) -> StoredTensor:
    stored = np.dtype(leaf.dtype if dtype is None or is_fixed(path, leaf.dtype) else jnp.dtype(dtype))

    def read() -> np.ndarray:
        with np.errstate(over="ignore"):
            narrow = np.asarray(leaf).astype(stored, copy=False)
        if not np.isfinite(narrow).all():
            name = f"{part}{jax.tree_util.keystr(path)}"
            raise LanternError(
                f"{name} holds values that are not finite in {stored.name}: store another dtype or retrain"
            )
        return narrow

    return StoredTensor(tuple(leaf.shape), stored, read)
