"""Converts Liquid's published files, a Gemma in transformers' layout, to our parameter tree."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.families.config_files import TANH_GELU, Dialect
from lantern_jax.families.liquid.model import LiquidConfig
from lantern_jax.families.token_weights import language_config, language_names, published_table, read_model

WHAT = "Liquid model"
# The first Gemmas said "gelu" and were computed in the tanh form.
DIALECT = Dialect(
    LiquidConfig, "gemma|liquid", harmless=("vocab_size",),
    only={
        "hidden_act": ("gelu", *TANH_GELU), "hidden_activation": TANH_GELU, "tie_word_embeddings": (False, True),
    },
)  # fmt: skip
NAMES = language_names("model.")
liquid_config_from_shapes = partial(language_config, DIALECT, NAMES, WHAT)


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
