"""Converts Liquid's published files, a Gemma in transformers' layout, to our parameter tree."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lantern_jax.families.token_weights import (
    heads_of,
    language_names,
    language_settings,
    language_sizes,
    published_table,
    token_shapes,
)
from lantern_jax.models.liquid import LiquidConfig
from lantern_jax.models.tokens import TokenModel
from lantern_jax.tensors.layer_names import buffers, config_from, deciding_shapes
from lantern_jax.tensors.matching import read_tensors

WHAT = "Liquid model"
NAMES = language_names("model.")
# Rows of the table that are multiplied together: a copy of all rows would take gigabytes.
_ROWS = 4096


def convert_liquid(
    tensors: Mapping[str, Any], config: LiquidConfig | Mapping[str, Any] | None = None, **reading: Any
) -> tuple[LiquidConfig, dict[str, Any]]:
    """Converts published tensors to the config and ``{"params": ...}`` of a Liquid model.

    Args:
        tensors: {name: array}; if there is no head among them, the embedding table serves as one.
        config: the model's ``config.json`` or a mapping of ``LiquidConfig`` fields; or the whole config.
        reading: ``dtype`` and ``progress`` of ``read_tensors``.

    Raises:
        LanternError: one line that lists every missing, unexpected and misshapen tensor, or says which setting
            contradicts the shapes.
    """
    if not isinstance(config, LiquidConfig):
        config = liquid_config_from_shapes(tensors, config)
    tied = NAMES["head"] not in tensors
    table = published_table(NAMES, config, tied=tied)
    params = read_tensors(tensors, table, what=WHAT, ignored=buffers(tensors), **reading)
    rows = params["tokens"]["embedding"]
    if tied:
        params["head"] = {"kernel": np.ascontiguousarray(rows[: config.num_codes].T)}
    for start in range(0, len(rows), _ROWS):
        some = slice(start, start + _ROWS)
        rows[some] = rows[some].astype(np.float32) * np.float32(math.sqrt(config.dim))
    return config, {"params": params}


def liquid_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> LiquidConfig:
    """Infers the config of a model from names and shapes (anything with ``.shape``), and ``settings`` for the rest.

    Raises:
        LanternError: tensors that decide a size are missing; a setting is unknown or contradicts the shapes.
    """
    found = language_sizes(tensors, NAMES, WHAT)
    settings = language_settings(settings)
    heads = heads_of(settings, LiquidConfig)
    query = NAMES["q"].format(i=0)
    found["head_width"] = deciding_shapes(tensors, {query: 2}, WHAT)[query][0] // heads
    return config_from(LiquidConfig, found, settings, heads)


def liquid_shapes(config: LiquidConfig) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``TokenModel(config).init`` makes."""
    return token_shapes(TokenModel, config)
