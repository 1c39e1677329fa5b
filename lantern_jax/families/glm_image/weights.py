"""Converts GLM-Image's published autoregressive part, ``vision_language_encoder``; what sees pictures is left out."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from lantern_jax.families.config_files import Dialect
from lantern_jax.families.glm_image.model import GlmImageConfig
from lantern_jax.families.token_weights import (
    code_columns,
    language_config,
    language_names,
    language_table,
    read_model,
)
from lantern_jax.tensors.layer_names import deciding_shapes
from lantern_jax.tensors.matching import Entry

WHAT = "GLM-Image model"
DIALECT = Dialect(
    GlmImageConfig, "glm_image(_text)?", {"mrope_section": "sections"}, {"mrope_section": tuple},
    {"attention_bias": (True,), "partial_rotary_factor": (0.5,)}, ("vocab_size",),
)  # fmt: skip
_LAYER = "model.language_model.layers.{i}."
NAMES = language_names("model.language_model.") | {
    "gate_up": f"{_LAYER}mlp.gate_up_proj.weight",
    "attention_output_norm": f"{_LAYER}post_self_attn_layernorm.weight",
    "feed_forward_output_norm": f"{_LAYER}post_mlp_layernorm.weight",
}
glm_image_config_from_shapes = partial(language_config, DIALECT, NAMES, WHAT)
# The encoder of pictures and its codebook.
OTHERS = ("model.visual.", "model.vqmodel.")


def convert_glm_image(
    tensors: Mapping[str, Any], config: GlmImageConfig, **reading: Any
) -> tuple[GlmImageConfig, dict[str, Any]]:
    """Converts published tensors (``token_weights``) but for the head's columns of marks, which are never sampled."""
    head = deciding_shapes(tensors, {NAMES["head"]: 2}, WHAT)[NAMES["head"]]
    table = {
        NAMES["tokens"]: Entry(("tokens", "embedding"), (config.vocab_size, config.dim)),
        NAMES["head"]: code_columns(config, max(head[0], config.num_codes)),
    } | language_table(NAMES, config, rotated=2 * sum(config.sections))
    return config, read_model(tensors, table, WHAT, OTHERS, **reading)
