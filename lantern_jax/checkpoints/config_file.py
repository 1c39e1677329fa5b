"""``config.json`` of a checkpoint directory: what is written into it, and its parts as configs."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lantern_jax import errors
from lantern_jax.checkpoints.checkpoint import PARTS, Checkpoint
from lantern_jax.checkpoints.old_layout import ONE_DRAFTER_VERSION, current_config
from lantern_jax.data.prompts import Vocabulary
from lantern_jax.families import FAMILIES, TargetConfig, family_name
from lantern_jax.models.drafters import drafter_kind, misfits
from lantern_jax.models.t5 import T5Config
from lantern_jax.models.vq import VQConfig

FORMAT = "lantern_jax checkpoint"
VERSION = 2
_READABLE = (ONE_DRAFTER_VERSION, VERSION)
# The classes of the parts' configs; the target's is its family's, a drafter's its kind's.
_CONFIGS = {"tokenizer": VQConfig, "text_encoder": T5Config}
# A checkpoint that names no family is LlamaGen's.
_DEFAULT_FAMILY = "llamagen"


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
        raise ValueError(f"{directory} is not a directory: give one that `lantern convert` wrote")
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{directory} is not a checkpoint, it has no config.json: see `lantern convert`")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise errors.damaged(path, str(error)) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{path} is not that of a lantern_jax checkpoint: see `lantern convert`")
    if not isinstance(config.get("defaults", {}), dict):
        raise errors.damaged(path, "its defaults are no object")
    if config.get("version") not in _READABLE:
        raise ValueError(
            f"{path} has format version {config.get('version')}, expected {VERSION}: convert it again"
        )
    if not isinstance(config.get("model"), str) or not config.get("target"):
        raise errors.damaged(path, "it names no model and target")
    config = current_config(config)
    if not isinstance(config.get("drafters"), dict):
        raise errors.damaged(path, "its drafters are no object")
    return config


def part_config(directory: Path, config: Mapping[str, Any], part: str) -> Any:
    values = config.get(part)
    if values is None:
        return None
    family = config.get("family", _DEFAULT_FAMILY)
    if family not in FAMILIES:
        raise ValueError(
            f"{directory / 'config.json'}: unknown family {family!r}, expected one of {', '.join(FAMILIES)}: "
            "upgrade lantern-jax or convert the checkpoint again"
        )
    try:
        if part == "target":
            vocabulary = config.get("vocabulary")
            vocabulary = None if vocabulary is None else Vocabulary.from_json(vocabulary)
            return FAMILIES[family].read_config(values, vocabulary)
        return _CONFIGS[part](**values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{directory / 'config.json'}: {part}: {error}; convert the checkpoint again"
        ) from error


def drafter_configs(directory: Path, config: Mapping[str, Any], target: TargetConfig) -> dict[str, Any]:
    configs = {}
    for kind, values in config["drafters"].items():
        try:
            configs[kind] = drafter_kind(kind).read_config(values)
            wrong = [
                f"{name} {ours}, the target's {theirs}"
                for name, ours, theirs in misfits(configs[kind], target)
            ]
            if wrong:
                raise ValueError(f"it has {'; '.join(wrong)}")
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{directory / 'config.json'}: {kind} drafter: {error}; convert the checkpoint again"
            ) from error
    return configs


def codebook_shapes(directory: Path, config: Mapping[str, Any], target: TargetConfig) -> dict[str, Any]:
    sizes = config.get("codebook")
    if sizes is None:
        return {}
    try:
        widths = {"neighbours": sizes["neighbours"], "codes": sizes["channels"]}
    except (TypeError, KeyError) as error:
        raise ValueError(f"{directory / 'config.json'}: codebook lacks {error}; convert it again") from error
    return {
        name: jax.ShapeDtypeStruct((target.num_codes, width), jnp.float32) for name, width in widths.items()
    }
