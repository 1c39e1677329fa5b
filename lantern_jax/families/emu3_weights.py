"""Converts Emu3-Gen's published transformer to our parameter tree; codes have the last ids there and the first here."""

from collections.abc import Mapping
from typing import Any

from lantern_jax.families.token_weights import (
    heads_of,
    language_names,
    language_settings,
    language_sizes,
    published_table,
    token_shapes,
)
from lantern_jax.models.emu3 import Emu3Config
from lantern_jax.models.tokens import TokenModel
from lantern_jax.tensors.layer_names import buffers, config_from, deciding_shapes
from lantern_jax.tensors.matching import read_tensors

WHAT = "Emu3 model"
# The authors' layout, and those of transformers since 4.52 and before.
LAYOUTS = (
    language_names("model."),
    language_names("model.text_model."),
    language_names("text_model.model.", "text_model.lm_head.weight"),
)
TOKENIZERS = ("model.vqmodel.", "vqmodel.")


def emu3_names(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the layout that the tensors are in."""
    return next((names for names in LAYOUTS if names["tokens"] in tensors), LAYOUTS[0])


def convert_emu3(
    tensors: Mapping[str, Any], config: Emu3Config | Mapping[str, Any] | None = None, **reading: Any
) -> tuple[Emu3Config, dict[str, Any]]:
    """Converts published tensors of any layout to the config and ``{"params": ...}`` of an Emu3 model.

    Args:
        tensors: {name: array}; a picture tokenizer among them is left out on purpose.
        config: the model's ``config.json`` or a mapping of ``Emu3Config`` fields; or the whole config.
        reading: ``dtype`` and ``progress`` of ``read_tensors``.

    Raises:
        LanternError: one line that lists every missing, unexpected and misshapen tensor, or says which setting
            contradicts the shapes.
    """
    names = emu3_names(tensors)
    if not isinstance(config, Emu3Config):
        config = emu3_config_from_shapes(tensors, config)
    ignored = [*buffers(tensors), *(name for name in tensors if name.startswith(TOKENIZERS))]
    table = published_table(names, config)
    return config, {"params": read_tensors(tensors, table, what=WHAT, ignored=ignored, **reading)}


def emu3_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> Emu3Config:
    """Infers the config of a model from names and shapes (anything with ``.shape``), and ``settings`` for the rest.

    Raises:
        LanternError: tensors that decide a size are missing; a setting is unknown or contradicts the shapes.
    """
    names = emu3_names(tensors)
    found = language_sizes(tensors, names, WHAT)
    settings = language_settings(settings)
    heads = heads_of(settings, Emu3Config)
    query, key = (names[part].format(i=0) for part in ("q", "k"))
    shapes = deciding_shapes(tensors, {query: 2, key: 2}, WHAT)
    shared = max(1, heads * shapes[key][0] // shapes[query][0])
    found["kv_heads"] = None if shared == heads else shared
    return config_from(Emu3Config, found, settings, heads)


def emu3_shapes(config: Emu3Config) -> dict[str, Any]:
    """Returns the shapes of the parameters that ``TokenModel(config).init`` makes."""
    return token_shapes(TokenModel, config)
