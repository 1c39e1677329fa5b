"""Converts X-Omni's published autoregressive part; what makes text and what sees pictures is left out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.families.config_files import Dialect
from lantern_jax.families.token_weights import (
    code_columns,
    language_config,
    language_names,
    language_table,
    read_model,
)
from lantern_jax.families.x_omni.model import XOmniConfig
from lantern_jax.tensors.layer_names import deciding_shapes
from lantern_jax.tensors.matching import Entry

WHAT = "X-Omni model"
DIALECT = Dialect(
    XOmniConfig, "x[-_]omni",
    {
        "num_mm_adap_layers": "front_layers", "num_mm_head_layers": "back_layers", "mm_vocab_size": "picture_tokens",
        "image_vocab_size": "num_codes",
    },
    harmless=("vocab_size",),
)  # fmt: skip
PICTURES, TEXT = "model.mm_embed_tokens.weight", "model.lm_embed_tokens.weight"
NAMES = language_names("model.", "mm_head.weight") | {"tokens": PICTURES, "norm": "model.mm_norm.weight"}
# What makes text, and the networks around the codes.
OTHERS = ("lm_head.", "model.lm_norm.", "image_tokenizer.")


def convert_x_omni(
    tensors: Mapping[str, Any], config: XOmniConfig, order: Any = None, **reading: Any
) -> tuple[XOmniConfig, dict[str, Any]]:
    """Converts published tensors (``token_weights``) but for the head's columns of marks, which are never sampled."""
    pictures, whole = config.picture_tokens, (config.vocab_size, config.dim)
    at = ("tokens", "embedding")
    table = {
        PICTURES: Entry(at, (pictures, config.dim), whole=whole, index=(slice(0, pictures),)),
        TEXT: Entry(at, (whole[0] - pictures, config.dim), whole=whole, index=(slice(pictures, None),)),
        NAMES["head"]: code_columns(config, pictures),
    } | language_table(NAMES, config)
    return config, read_model(tensors, table, WHAT, OTHERS, **reading)


def x_omni_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> XOmniConfig:
    """Infers the config (``token_weights``)."""
    shapes = deciding_shapes(tensors, {PICTURES: 2, TEXT: 2}, WHAT)
    rows = {"vocab_size": shapes[PICTURES][0] + shapes[TEXT][0], "picture_tokens": shapes[PICTURES][0]}
    return language_config(DIALECT, NAMES, WHAT, tensors, settings, **rows)


def published_order(config: XOmniConfig, text_tokenizer: Path | None = None) -> Int[np.ndarray, " vocab"]:
    """Returns the published id of every row of the table: the text's come first there."""
    return np.roll(np.arange(config.vocab_size, dtype=np.int32), config.picture_tokens)
