"""``config.json`` of a checkpoint directory: writing its content, and reading its parts as configs."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lantern_jax.checkpoints.checkpoint import PARTS, Checkpoint
from lantern_jax.families.drafters import drafter_kind, misfits
from lantern_jax.families.registry import FAMILIES, TargetConfig, family_name
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json
from lantern_jax.models.sizes import is_size
from lantern_jax.models.t5 import T5Config
from lantern_jax.models.vq import VQConfig
from lantern_jax.tensors.checksums import FILES, MOST_BYTES, SUMS, check_config
from lantern_jax.text.landscapes import Vocabulary

FORMAT = "lantern_jax checkpoint"
VERSION = 3
_ENTRIES = {
    "format", "version", "model", "family", *PARTS, "drafters", "codebook", "vocabulary", "defaults", "metadata",
    FILES, SUMS,
}  # fmt: skip
# Fields that count modules, and how many arrays of its own each has at least.
_MODULES, _ARRAYS = ("num_layers", "encoder_blocks", "decoder_blocks"), 4
# This many arrays are soon described, and then named one by one where they do not fit.
_FEW = 200
# The classes of the parts' configs; the target's is its family's, a drafter's its kind's.
_CONFIGS = {"tokenizer": VQConfig, "text_encoder": T5Config}


def config_json(checkpoint: Checkpoint) -> dict[str, Any]:
    configs = {part: getattr(checkpoint, f"{part}_config") for part in PARTS}
    codebook, vocabulary = checkpoint.codebook, checkpoint.vocabulary
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.model,
        "family": family_name(checkpoint.target_config),
        **{part: None if config is None else dataclasses.asdict(config) for part, config in configs.items()},
        "drafters": {kind: dataclasses.asdict(config) for kind, (config, _) in checkpoint.drafters.items()},
        "codebook": None
        if codebook is None
        else {"neighbours": codebook.neighbours.shape[1], "channels": codebook.codes.shape[1]},
        "vocabulary": None if vocabulary is None else vocabulary.to_json(),
        "defaults": checkpoint.defaults,
        "metadata": checkpoint.metadata,
    }


def read_config(directory: Path) -> Mapping[str, Any]:
    if not directory.is_dir():
        raise LanternError(f"{directory} is not a directory: give one that `lantern convert` wrote")
    path = directory / "config.json"
    if not path.is_file():
        raise LanternError(f"{directory} is not a checkpoint, it has no config.json: see `lantern convert`")
    try:
        config = read_json(path, MOST_BYTES)
    except ValueError as error:
        raise errors.damaged(path, str(error).removeprefix(f"{path} ")) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise LanternError(f"{path} is not that of a lantern_jax checkpoint: see `lantern convert`")
    if config.get("version") != VERSION:
        raise LanternError(
            f"{path} has format version {errors.printable(config.get('version'), 40)}, expected {VERSION}: "
            "convert it again"
        )
    # One flipped bit in its name would hide an entry.
    unknown = sorted(set(config) - _ENTRIES)
    if unknown:
        raise errors.damaged(path, f"it has unknown entries: {', '.join(unknown)}")
    check_config(path, config)
    for name in ("defaults", "metadata"):
        if not isinstance(config.get(name, {}), dict):
            raise errors.damaged(path, f"its {name} are no object")
    if not isinstance(config.get("model"), str) or not config.get("target"):
        raise errors.damaged(path, "it names no model and target")
    if not isinstance(config.get("drafters"), dict):
        raise errors.damaged(path, "its drafters are no object")
    return config


def part_config(directory: Path, config: Mapping[str, Any], part: str) -> Any:
    values = config.get(part)
    if values is None:
        return None
    family = config.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        given = errors.printable(repr(family), 40)
        raise LanternError(
            f"{directory / 'config.json'}: unknown family {given}, expected one of {', '.join(FAMILIES)}: "
            "upgrade lantern-jax or convert the checkpoint again"
        )
    with _fitting(directory, part):
        return (FAMILIES[family].config if part == "target" else _CONFIGS[part])(**values)


def read_vocabulary(directory: Path, config: Mapping[str, Any]) -> Vocabulary | None:
    values = config.get("vocabulary")
    with _fitting(directory, "vocabulary"):
        return None if values is None else Vocabulary.from_json(values)


def drafter_configs(directory: Path, config: Mapping[str, Any], target: TargetConfig) -> dict[str, Any]:
    configs = {}
    for kind, values in config["drafters"].items():
        with _fitting(directory, f"{kind} drafter"):
            configs[kind] = drafter_kind(kind).read_config(values)
            wrong = [
                f"{name} {ours}, the target's {theirs}"
                for name, ours, theirs in misfits(configs[kind], target)
            ]
            if wrong:
                raise LanternError(f"it has {'; '.join(wrong)}")
    return configs


@contextlib.contextmanager
def _fitting(directory: Path, part: str) -> Iterator[None]:
    """Names the part in errors of a block that reads its config."""
    try:
        yield
    # Values of any type may stand where a config wants a number.
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = errors.printable(f"{part}: {error}", 1000)
        raise LanternError(f"{directory / 'config.json'}: {why}; convert the checkpoint again") from error


def codebook_shapes(directory: Path, config: Mapping[str, Any], target: TargetConfig) -> dict[str, Any]:
    sizes = config.get("codebook")
    if sizes is None:
        return {}
    wanted = ("neighbours", "channels")
    if not isinstance(sizes, Mapping) or not all(is_size(sizes.get(name), 0) for name in wanted):
        path = directory / "config.json"
        raise errors.damaged(path, f"its codebook lacks a number of {' or of '.join(wanted)}")
    widths = {"neighbours": sizes["neighbours"], "codes": sizes["channels"]}
    return {
        name: jax.ShapeDtypeStruct((target.num_codes, width), jnp.float32) for name, width in widths.items()
    }


def check_counts(directory: Path, part: str, config: Any, names: Iterable[str]) -> None:
    """Raises LanternError where a part's config counts more modules than there are arrays of that part among ``names``:
    a model of a million layers is refused before anything is made of it.
    """
    count = sum(name.startswith(f"{part}.") for name in names)
    for name in _MODULES:
        given = getattr(config, name, 0)
        if given * _ARRAYS > max(count, _FEW):
            with _fitting(directory, part):
                raise LanternError(f"{name} {given} does not fit the {count} arrays there are")
