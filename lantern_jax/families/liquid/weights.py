"""Converts Liquid's published files, a Gemma in transformers' layout, to our parameter tree."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.families.config_files import TANH_GELU, Dialect, config_from, heads_of, normalize_settings
from lantern_jax.families.liquid.model import LiquidConfig
from lantern_jax.families.token_weights import language_names, language_sizes, published_table, read_model
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.layer_names import deciding_shapes

WHAT = "Liquid model"
TIED = "tie_word_embeddings"
# The first Gemmas said "gelu" and were computed in the tanh form.
DIALECT = Dialect(
    LiquidConfig, "gemma|liquid", "(Gemma|Liquid|MiniGeminiGemma)For.*",
    only={"hidden_act": ("gelu", *TANH_GELU), "hidden_activation": TANH_GELU, TIED: (False, True)},
    harmless="vocab_size", kept=(TIED,),
)  # fmt: skip
NAMES = language_names("model.")


def convert_liquid(
    tensors: Mapping[str, Any],
    config: LiquidConfig,
    order: Int[np.ndarray, " vocab"] | None = None,
    **reading: Any,
) -> tuple[LiquidConfig, dict[str, Any]]:
    """Converts published tensors (``token_weights``); if there is no head among them, the embedding table is one."""
    table = published_table(NAMES, config, order=order)
    tokens, scale = table[NAMES["tokens"]], np.float32(math.sqrt(config.dim))
    # As Gemma does whenever it looks up a row.
    table[NAMES["tokens"]] = replace(tokens, transform=lambda rows: tokens.transform(rows) * scale)
    if NAMES["head"] not in tensors and NAMES["tokens"] in tensors:
        tensors = {**tensors, NAMES["head"]: tensors[NAMES["tokens"]]}
    return config, read_model(tensors, table, WHAT, **reading)


def liquid_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> LiquidConfig:
    """Infers the config (``token_weights``); a head that is not tied must be there."""
    found = language_sizes(tensors, NAMES, WHAT)
    if NAMES["head"] not in tensors and normalize_settings(settings or {}, DIALECT).get(TIED) is False:
        raise LanternError(f"{TIED} is false and {NAMES['head']} is missing: give the file that has it")
    heads = heads_of(settings or {}, DIALECT)
    query = NAMES["q"].format(i=0)
    found["head_width"] = deciding_shapes(tensors, {query: 2}, WHAT)[query][0] // heads
    return config_from(DIALECT, found, settings, heads)
