"""Converts GLM-Image's published autoregressive part, ``vision_language_encoder``; what sees pictures is left out."""

from collections.abc import Mapping
from typing import Any

from lantern_jax.families.config_files import Dialect, config_from, heads_of
from lantern_jax.families.glm_image.model import GlmImageConfig
from lantern_jax.families.token_weights import (
    code_columns,
    key_heads,
    language_names,
    language_table,
    read_model,
)
from lantern_jax.tensors.layer_names import count_layers, deciding_shapes
from lantern_jax.tensors.matching import Entry

WHAT = "GLM-Image model"
DIALECT = Dialect(
    GlmImageConfig, "glm_image(_text)?", "GlmImage.*", {"mrope_section": "sections"}, {"mrope_section": tuple},
    {"attention_bias": (True,)},
    harmless="vocab_size vision_vocab_size image_start_token_id image_end_token_id",
    parts={"vision_config": {}, "vq_config": {}}, rotation={"partial_rotary_factor": (0.5,)},
)  # fmt: skip
_LAYER = "model.language_model.layers.{i}."
NAMES = language_names("model.language_model.") | {
    "gate_up": f"{_LAYER}mlp.gate_up_proj.weight",
    "attention_output_norm": f"{_LAYER}post_self_attn_layernorm.weight",
    "feed_forward_output_norm": f"{_LAYER}post_mlp_layernorm.weight",
}
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


def glm_image_config_from_shapes(
    tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> GlmImageConfig:
    """Infers the config (``token_weights``)."""
    gate_up = NAMES["gate_up"].format(i=0)
    shapes = deciding_shapes(tensors, {NAMES["tokens"]: 2, gate_up: 2}, WHAT)
    heads = heads_of(settings or {}, DIALECT)
    rows, dim = shapes[NAMES["tokens"]]
    found = {
        "dim": dim, "vocab_size": rows, "hidden_dim": shapes[gate_up][0] // 2,
        "num_layers": count_layers(tensors, NAMES["attention_norm"]),
        "kv_heads": key_heads(tensors, NAMES, heads, WHAT),
    }  # fmt: skip
    return config_from(DIALECT, found, settings, heads)
