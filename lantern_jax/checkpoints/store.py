"""The library's own checkpoints: a directory with ``config.json`` and the arrays, written by orbax.

    config.json   sizes, vocabulary, sampling defaults, metadata, sizes of the files of arrays/
    arrays/       {"target", "tokenizer", "drafter", "neighbours", "codes"}: each optional but the target

Axes: V codes, K neighbours, C channels of a code.
"""

import dataclasses
import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax.checkpoints.arrays import check_files, file_sizes, read_arrays, stored_shapes, write_arrays
from lantern_jax.checkpoints.drafter import drafter_shapes
from lantern_jax.checkpoints.llamagen import gpt_shapes
from lantern_jax.checkpoints.llamagen_vq import vq_shapes
from lantern_jax.checkpoints.strict import describe_mismatch
from lantern_jax.data.prompts import Vocabulary
from lantern_jax.decoding.acceptance import Codebook
from lantern_jax.models.drafter import DrafterConfig
from lantern_jax.models.llamagen import LlamaGenConfig
from lantern_jax.models.vq import VQConfig

FORMAT = "lantern_jax checkpoint"
VERSION = 1
DTYPES = ("float16", "bfloat16", "float32")
# Part of a checkpoint -> the class of its config and the function that gives its parameters' shapes.
_PARTS = {
    "target": (LlamaGenConfig, gpt_shapes),
    "tokenizer": (VQConfig, vq_shapes),
    "drafter": (DrafterConfig, drafter_shapes),
}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Everything that generation needs.

    Attributes:
        model: the model's name, for people.
        target_config, target_params: the GPT; parameters are NumPy or JAX arrays, ``{"params": ...}``.
        tokenizer_config, tokenizer_params: the VQ tokenizer, or None; without it there are tokens, no pictures.
        drafter_config, drafter_params: ``DrafterModel``'s parameters, or None. Its head is the target's.
        codebook: nearest neighbours and codes as the decoder sees them, for relaxed rules; or None.
        vocabulary: the words of prompts, or None for class- and caption-conditional models.
        defaults: sampling settings this model is best used with, by knob name.
        metadata: anything JSON can hold: source, recipe, metrics.
    """

    model: str
    target_config: LlamaGenConfig
    target_params: PyTree
    tokenizer_config: VQConfig | None = None
    tokenizer_params: PyTree | None = None
    drafter_config: DrafterConfig | None = None
    drafter_params: PyTree | None = None
    codebook: Codebook | None = None
    vocabulary: Vocabulary | None = None
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def decoding_drafter_params(self) -> PyTree | None:
        """What the drafter record takes: the drafter's parameters and the target's own head."""
        if self.drafter_params is None:
            return None
        return {"drafter": self.drafter_params, "head": self.target_params["params"]["head"]["kernel"]}


def demo_directory() -> Path:
    """Where the demo checkpoint that ships with the package lies."""
    return Path(str(resources.files("lantern_jax") / "assets" / "demo"))


def save(
    directory: str | Path, checkpoint: Checkpoint, *, overwrite: bool = False, dtype: Any = None
) -> Path:
    """Writes a checkpoint; a crash leaves nothing under the final name.

    Args:
        directory: new, unless ``overwrite``.
        dtype: float16, bfloat16 or float32, of all stored parameters; None keeps each as it is. Codes stay
            float32.

    Raises:
        ValueError: the directory exists, parameters do not fit their configs, parts of the checkpoint do not
            fit each other, or values that ``dtype`` cannot hold.
    """
    directory = Path(directory)
    if directory.exists() and not overwrite:
        raise ValueError(f"{directory} exists: name a new folder or allow overwriting")
    if directory.exists() and not (directory / "config.json").is_file():
        raise ValueError(f"{directory} exists and is not a checkpoint: name another folder")
    if dtype is not None and jnp.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype {jnp.dtype(dtype).name} is not valid: give one of {', '.join(DTYPES)}")
    check(checkpoint)
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=parent))
    try:
        temporary.chmod(0o755)
        write_arrays(temporary / "arrays", _stored_arrays(checkpoint, dtype))
        config = _config_json(checkpoint) | {"files": file_sizes(temporary / "arrays")}
        (temporary / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if directory.exists():
            old = temporary.with_name(temporary.name + ".old")
            directory.rename(old)
            temporary.rename(directory)
            shutil.rmtree(old)
        else:
            temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return directory


def load(directory: str | Path, dtype: Any = jnp.float32) -> Checkpoint:
    """Reads a checkpoint; arrays come out as NumPy arrays on the host.

    Args:
        dtype: of the target's and drafter's parameters. The tokenizer's are float32.

    Raises:
        ValueError: one line: the directory is missing, no checkpoint, damaged, or holds arrays that do not fit
            its config (missing, unexpected and misshapen ones are listed; nothing large has been read then).
    """
    directory = Path(directory)
    config = _read_config(directory)
    check_files(directory / "arrays", config.get("files"))
    configs = {part: _part_config(directory, config, part) for part in _PARTS}
    expected = {
        part: _PARTS[part][1](part_config) for part, part_config in configs.items() if part_config is not None
    }
    expected |= _codebook_shapes(directory, config, configs["target"])
    mismatch = describe_shapes(stored_shapes(directory / "arrays"), expected)
    if mismatch:
        raise ValueError(f"{directory} does not fit its config.json: {mismatch}; fetch or convert it again")
    dtypes = {"target": dtype, "drafter": dtype, "tokenizer": jnp.float32, "codes": jnp.float32}
    arrays = read_arrays(directory / "arrays", expected, dtypes)
    codebook = None
    if "neighbours" in arrays:
        codebook = Codebook(neighbours=arrays["neighbours"].astype(np.int32), codes=arrays["codes"])
    vocabulary = config.get("vocabulary")
    return Checkpoint(
        model=config["model"],
        target_config=configs["target"],
        target_params=arrays["target"],
        tokenizer_config=configs["tokenizer"],
        tokenizer_params=arrays.get("tokenizer"),
        drafter_config=configs["drafter"],
        drafter_params=arrays.get("drafter"),
        codebook=codebook,
        vocabulary=None if vocabulary is None else Vocabulary.from_json(vocabulary),
        defaults=config.get("defaults", {}),
        metadata=config.get("metadata", {}),
    )


def check(checkpoint: Checkpoint) -> None:
    """Raises ValueError where parameters do not fit their configs or parts do not fit each other."""
    for part, (_, shapes_of) in _PARTS.items():
        config = getattr(checkpoint, f"{part}_config")
        params = getattr(checkpoint, f"{part}_params")
        if (config is None) != (params is None):
            raise ValueError(
                f"the {part} has {'parameters' if config is None else 'a config'} only: give both"
            )
        if config is not None:
            mismatch = describe_shapes({part: params}, {part: shapes_of(config)})
            if mismatch:
                raise ValueError(f"the {part}'s parameters do not fit its config: {mismatch}")
    target, drafter, tokenizer = (
        getattr(checkpoint, f"{part}_config") for part in ("target", "drafter", "tokenizer")
    )
    pairs = []
    if drafter is not None:
        names = ("dim", "vocab_size", "grid", "prefix_length")
        pairs += [(f"drafter's {name}", getattr(drafter, name), getattr(target, name)) for name in names]
    if tokenizer is not None:
        pairs.append(("tokenizer's codebook_size", tokenizer.codebook_size, target.vocab_size))
    if checkpoint.codebook is not None:
        pairs.append(("neighbour table's rows", checkpoint.codebook.neighbours.shape[0], target.vocab_size))
        pairs.append(("number of codes", checkpoint.codebook.codes.shape[0], target.vocab_size))
    if checkpoint.vocabulary is not None:
        pairs.append(("vocabulary's labels", checkpoint.vocabulary.num_labels, target.num_labels))
        pairs.append(("vocabulary's attributes", checkpoint.vocabulary.num_attributes, target.label_slots))
    wrong = [f"the {name} {given}, the target's {wanted}" for name, given, wanted in pairs if given != wanted]
    if wrong:
        raise ValueError(f"parts of the checkpoint do not fit each other: {'; '.join(wrong)}")


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint holds, for people and JSON: sizes, parameter counts, defaults, metadata."""
    parts = {}
    for part in _PARTS:
        config = getattr(checkpoint, f"{part}_config")
        if config is not None:
            leaves = jax.tree.leaves(getattr(checkpoint, f"{part}_params"))
            parts[part] = {
                "parameters": sum(math.prod(leaf.shape) for leaf in leaves),
                "dtype": leaves[0].dtype.name,
                **dataclasses.asdict(config),
            }
    codebook, vocabulary = checkpoint.codebook, checkpoint.vocabulary
    return {
        "model": checkpoint.model,
        "tokens": checkpoint.target_config.num_tokens,
        "picture_size": _picture_size(checkpoint),
        **parts,
        "neighbours": None if codebook is None else int(codebook.neighbours.shape[1]),
        "vocabulary": None
        if vocabulary is None
        else {name: list(values) for name, values in vocabulary.attributes.items()},
        "defaults": checkpoint.defaults,
        "metadata": checkpoint.metadata,
    }


def describe_shapes(found: PyTree, expected: PyTree) -> str:
    """One line listing missing, unexpected and misshapen arrays of a tree; empty where all is right."""
    return describe_mismatch(_flat_shapes(found), _flat_shapes(expected))


def _flat_shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(str(key.key) for key in path if str(key.key) != "params"): tuple(leaf.shape)
        for path, leaf in flat
    }


def _picture_size(checkpoint: Checkpoint) -> int | None:
    tokenizer = checkpoint.tokenizer_config
    return None if tokenizer is None else checkpoint.target_config.grid * tokenizer.downsampling


def _stored_arrays(checkpoint: Checkpoint, dtype: Any) -> dict[str, PyTree]:
    arrays = {}
    for part in _PARTS:
        params = getattr(checkpoint, f"{part}_params")
        if params is not None:
            arrays[part] = jax.tree_util.tree_map_with_path(
                lambda path, leaf, part=part: _narrow(f"{part}{jax.tree_util.keystr(path)}", leaf, dtype),
                params,
            )
    if checkpoint.codebook is not None:
        neighbours = np.asarray(checkpoint.codebook.neighbours)
        small = neighbours.size == 0 or (neighbours.min() >= 0 and neighbours.max() < 1 << 16)
        arrays["neighbours"] = neighbours.astype(np.uint16 if small else np.int32)
        arrays["codes"] = np.asarray(checkpoint.codebook.codes, np.float32)
    return arrays


def _narrow(name: str, leaf: Any, dtype: Any) -> np.ndarray:
    leaf = np.asarray(leaf)
    with np.errstate(over="ignore"):
        narrow = leaf if dtype is None else leaf.astype(jnp.dtype(dtype))
    if not np.isfinite(narrow.astype(np.float32)).all():
        raise ValueError(
            f"{name} holds values that are not finite in {narrow.dtype.name}: store another dtype or retrain"
        )
    return narrow


def _config_json(checkpoint: Checkpoint) -> dict[str, Any]:
    configs = {part: getattr(checkpoint, f"{part}_config") for part in _PARTS}
    codebook, vocabulary = checkpoint.codebook, checkpoint.vocabulary
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.model,
        **{part: None if config is None else dataclasses.asdict(config) for part, config in configs.items()},
        "codebook": None
        if codebook is None
        else {"neighbours": codebook.neighbours.shape[1], "channels": codebook.codes.shape[1]},
        "vocabulary": None if vocabulary is None else vocabulary.to_json(),
        "defaults": checkpoint.defaults,
        "metadata": checkpoint.metadata,
    }


def _read_config(directory: Path) -> Mapping[str, Any]:
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory: give one that `lantern convert` wrote")
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{directory} is not a checkpoint, it has no config.json: see `lantern convert`")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): fetch or convert the checkpoint again") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} is not that of a lantern_jax checkpoint: see `lantern convert`")
    if config.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {config.get('version')}, expected {VERSION}: convert it again"
        )
    if not isinstance(config.get("model"), str) or not config.get("target"):
        raise ValueError(
            f"{path} is damaged, it names no model and target: fetch or convert the checkpoint again"
        )
    return config


def _part_config(directory: Path, config: Mapping[str, Any], part: str) -> Any:
    values = config.get(part)
    if values is None:
        return None
    try:
        return _PARTS[part][0](**values)
    except TypeError as error:
        raise ValueError(
            f"{directory / 'config.json'}: {part}: {error}; convert the checkpoint again"
        ) from error


def _codebook_shapes(directory: Path, config: Mapping[str, Any], target: LlamaGenConfig) -> dict[str, Any]:
    sizes = config.get("codebook")
    if sizes is None:
        return {}
    try:
        widths = {"neighbours": sizes["neighbours"], "codes": sizes["channels"]}
    except (TypeError, KeyError) as error:
        raise ValueError(f"{directory / 'config.json'}: codebook lacks {error}; convert it again") from error
    return {
        name: jax.ShapeDtypeStruct((target.vocab_size, width), jnp.float32) for name, width in widths.items()
    }
