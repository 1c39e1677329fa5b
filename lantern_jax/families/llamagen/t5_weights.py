"""Converts T5's published encoder (T5 1.1 and Flan-T5; Hugging Face names) to our parameter tree."""

from collections.abc import Mapping
from typing import Any

from lantern_jax.families.config_files import TANH_GELU, Dialect, config_from
from lantern_jax.families.token_weights import read_model
from lantern_jax.models.t5 import T5Config, t5_shapes
from lantern_jax.tensors.layer_names import count_layers, deciding_shapes
from lantern_jax.tensors.matching import Entry, module_table, named_by

DIALECT = Dialect(
    T5Config, "m?t5",
    {
        "d_model": "dim", "d_kv": "head_dim", "d_ff": "hidden_dim", "layer_norm_epsilon": "norm_eps",
        "relative_attention_num_buckets": "num_buckets", "relative_attention_max_distance": "max_distance",
    },
    only={
        "feed_forward_proj": ("gated-gelu",), "dense_act_fn": TANH_GELU, "tie_word_embeddings": (False, True),
    },
)  # fmt: skip
# The embedding table goes by either name, and often by both.
TOKENS = ("shared.weight", "encoder.embed_tokens.weight")
RELATIVE_BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
LAYER_NAMES = {
    "attention_norm": "encoder.block.{i}.layer.0.layer_norm",
    "query": "encoder.block.{i}.layer.0.SelfAttention.q",
    "key": "encoder.block.{i}.layer.0.SelfAttention.k",
    "value": "encoder.block.{i}.layer.0.SelfAttention.v",
    "out": "encoder.block.{i}.layer.0.SelfAttention.o",
    "feed_forward_norm": "encoder.block.{i}.layer.1.layer_norm",
    "gate": "encoder.block.{i}.layer.1.DenseReluDense.wi_0",
    "up": "encoder.block.{i}.layer.1.DenseReluDense.wi_1",
    "down": "encoder.block.{i}.layer.1.DenseReluDense.wo",
}
# The half of the model that writes text.
DECODER = ("decoder.", "lm_head.")


def convert_t5(
    tensors: Mapping[str, Any], config: T5Config | Mapping[str, Any] | None = None, **reading: Any
) -> tuple[T5Config, dict[str, Any]]:
    """Converts published tensors (``token_weights``) of a whole model or its encoder, without decoder and head.

    Shapes do not show ``max_distance`` and ``norm_eps``.
    """
    if not isinstance(config, T5Config):
        config = t5_config_from_shapes(tensors, config)
    table = t5_table(config, tokens=_tokens_name(tensors))
    return config, read_model(tensors, table, "T5 encoder", (*TOKENS, *DECODER), **reading)


def t5_config_from_shapes(tensors: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> T5Config:
    """Infers the config (``token_weights``); raises LanternError for the feed-forward layers of T5 1.0."""
    tokens = _tokens_name(tensors)
    query, gate = (f"{LAYER_NAMES[part].format(i=0)}.weight" for part in ("query", "gate"))
    shapes = deciding_shapes(tensors, dict.fromkeys((tokens, RELATIVE_BIAS, query, gate), 2), "T5 encoder")
    (vocab_size, dim), (num_buckets, num_heads) = shapes[tokens], shapes[RELATIVE_BIAS]
    found = {
        "dim": dim, "vocab_size": vocab_size, "hidden_dim": shapes[gate][0], "num_buckets": num_buckets,
        "num_heads": num_heads, "head_dim": shapes[query][0] // num_heads,
        "num_layers": count_layers(tensors, f"{LAYER_NAMES['attention_norm']}.weight"),
    }  # fmt: skip
    return config_from(DIALECT, found, settings)


def t5_table(config: T5Config, tokens: str = TOKENS[0]) -> dict[str, Entry]:
    """Lists {published name: Entry} of an encoder; ``tokens`` is the name its embedding table goes by."""
    names = {"tokens.embedding": tokens, "relative_bias": RELATIVE_BIAS, "norm": "encoder.final_layer_norm"}
    names |= {f"layer_{{i}}.{part}": name for part, name in LAYER_NAMES.items()}
    return module_table(t5_shapes(config)["params"], named_by(names))


def _tokens_name(tensors: Mapping[str, Any]) -> str:
    return next((name for name in TOKENS if name in tensors), TOKENS[0])
