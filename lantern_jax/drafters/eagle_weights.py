"""Converts LANTERN's released drafters (LlamaGen, LlamaGen-2, Anole) to our parameter tree."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.drafters.registry import misfits
from lantern_jax.drafters.sequence import DrafterConfig
from lantern_jax.families.config_files import Dialect, config_from, normalize_settings, side_of
from lantern_jax.families.registry import TargetConfig
from lantern_jax.families.token_weights import language_names, read_model
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.layer_names import (
    deciding_shapes,
    heads_of_norm,
    layer_table,
)
from lantern_jax.tensors.matching import Entry, reordered_rows, transpose

# What LANTERN's drafters for captions call the pictures that they were trained on -> codes a side.
_STAGES = {"t2i": 16, "t2i2": 32}
DIALECT = Dialect(
    DrafterConfig, "llama|chameleon(_vqgan)?", {"input_type": "grid", "block_size": "grid"},
    {"input_type": lambda stage: _STAGES.get(str(stage)), "block_size": side_of},
)  # fmt: skip
DRAFTER_NAMES = language_names("")
QUERY_NORM = DRAFTER_NAMES["query_norm"].format(i=0) + ".weight"


def convert_drafter(
    tensors: Mapping[str, np.ndarray],
    config: DrafterConfig | Mapping[str, Any] | None = None,
    *,
    target: TargetConfig | None = None,
    order: Int[np.ndarray, " vocab"] | None = None,
    **reading: Any,
) -> tuple[DrafterConfig, dict[str, Any]]:
    """Converts published tensors (``token_weights``); raises LanternError too for sizes that are not the target's.

    Args:
        target: the model it drafts for; gives what they share and (unless ``config`` has it) the number of heads.
        order: published id of every row of our table, if they differ (``ChameleonVocabulary.order``).
    """
    if not isinstance(config, DrafterConfig):
        config = drafter_config_from_shapes(tensors, config, target)
    if target is not None:
        for name, ours, theirs in misfits(config, target):
            raise LanternError(
                f"the drafter's {name} is {ours}, the target's {theirs}: give the drafter of this target"
            )
    norm_rows = tensors[QUERY_NORM].shape[0] if QUERY_NORM in tensors else None
    return config, read_model(tensors, drafter_table(config, order, norm_rows), "LANTERN drafter", **reading)


def drafter_config_from_shapes(
    tensors: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    target: TargetConfig | None = None,
) -> DrafterConfig:
    """Infers the config of a drafter from shapes, its ``config.json`` and its target."""
    gate, norm = DRAFTER_NAMES["gate"].format(i=0), QUERY_NORM
    wanted = {DRAFTER_NAMES["tokens"]: 2, gate: 2} | ({norm: 2} if norm in tensors else {})
    shapes = deciding_shapes(tensors, wanted, "LANTERN drafter")
    vocab_size, dim = shapes[DRAFTER_NAMES["tokens"]]
    found: dict[str, Any] = {} if target is None else dict(target.shared_with_drafter)
    found |= {"dim": dim, "vocab_size": vocab_size, "hidden_dim": shapes[gate][0]}
    # LANTERN trains and runs its drafters for LlamaGen without a mask of the prefix; the one for Anole has a mask.
    found["sees_padding"] = found.get("rotary", "grid") == "grid"
    if norm in tensors:
        found |= {"qk_norm": "layer", "num_heads": heads_of_norm(shapes[norm], dim)[0]}
    # What its config says of the target's pictures is compared with the target later.
    said = normalize_settings(settings or {}, DIALECT)
    found |= {name: said[name] for name in ("grid",) if name in said}
    return config_from(DIALECT, found, said, None if target is None else target.num_heads)


def drafter_table(
    config: DrafterConfig, order: Int[np.ndarray, " vocab"] | None = None, norm_rows: int | None = None
) -> dict[str, Entry]:
    """Lists {published name: Entry}; ``order`` as in ``convert_drafter``, ``norm_rows`` as in ``layer_table``."""
    shape = (config.vocab_size, config.dim)
    # LlamaGen's pairs are interleaved, Chameleon's are not.
    interleaved = config.rotary == "grid"
    return {
        DRAFTER_NAMES["tokens"]: Entry(("tokens", "embedding"), shape, reordered_rows(order)),
        "fc.weight": Entry(("fc", "kernel"), (config.dim, 2 * config.dim), transpose),
        "fc.bias": Entry(("fc", "bias"), (config.dim,)),
        **layer_table(DRAFTER_NAMES, 0, config.transformer, interleaved=interleaved, norm_rows=norm_rows),
    }
