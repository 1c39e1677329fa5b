"""Query heads that share keys and values, and the other parts of a layer that can be configured."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.io.errors import LanternError
from lantern_jax.kernels.ways import attention_way
from lantern_jax.models import attention, transformer
from lantern_jax.models.positions import line_rotary
from lantern_jax.models.transformer import RMSNorm, Transformer
from lantern_jax.models.transformer_config import TransformerConfig
from tests.tiny_checkpoint import random_leaves

# GLM-4's biases and norms, Qwen3's norms of queries and keys.
MORE = {"qkv_bias": True, "output_norms": True, "qk_norm": "rms"}
CONFIG = TransformerConfig(24, 2, 6, 40, kv_heads=2, head_width=8, activation="gelu", norm_offset=1)
ROWS, BATCH, LENGTH, SLOTS = 2, 3, 5, 7


def inputs(seed: int, config: TransformerConfig):
    """Makes a block after a past of different lengths."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, BATCH, LENGTH, config.dim)).astype(np.float32)
    rotary = line_rotary(jnp.arange(SLOTS, SLOTS + LENGTH)[None, None], config.head_dim)
    causal = jnp.asarray(np.tril(np.ones((LENGTH, LENGTH), bool)))[None, None]
    states = (ROWS, BATCH, config.key_heads, SLOTS, config.head_dim)
    past = tuple(
        tuple(jnp.asarray(rng.standard_normal(states), jnp.float32) for _ in range(2))
        for _ in range(config.num_layers)
    )
    seen = jnp.asarray(np.arange(SLOTS) < 1 + np.arange(BATCH)[:, None])[None, :, None]
    return jnp.asarray(x), rotary, causal, (past,), (jnp.broadcast_to(seen, (ROWS, BATCH, 1, SLOTS)),)


def of_single_heads(config: TransformerConfig, params, given):
    """Returns the same layers with a copy of the keys and values for every query head."""
    groups, heads = config.groups, config.key_heads
    single = replace(config, kv_heads=None)
    spread = jax.tree.map(np.asarray, params)
    for i in range(config.num_layers):
        kernel = spread["params"][f"layer_{i}"]["qkv"]["kernel"]
        queries = kernel[:, :groups].swapaxes(1, 2).reshape(config.dim, groups * heads, -1)
        keys, values = (np.repeat(kernel[:, groups + j], groups, axis=1) for j in range(2))
        spread["params"][f"layer_{i}"]["qkv"] = {"kernel": np.stack([queries, keys, values], axis=1)}
        if config.qkv_bias:
            bias = params["params"][f"layer_{i}"]["qkv"]["bias"]
            queries = bias[:groups].swapaxes(0, 1).reshape(groups * heads, -1)
            keys, values = (np.repeat(bias[groups + j], groups, axis=0) for j in range(2))
            spread["params"][f"layer_{i}"]["qkv"]["bias"] = np.stack([queries, keys, values])
    x, rotary, causal, past, masks = given
    past = jax.tree.map(lambda states: jnp.repeat(states, groups, axis=2), past)
    return single, spread, (x, rotary, causal, past, masks)


@pytest.mark.parametrize(
    ("way", "more"), [("_by_products", {}), ("_by_products", MORE), ("_by_tall_products", MORE)]
)
def test_grouped_queries_are_those_of_repeated_keys(way, more, monkeypatch, assert_close):
    """With one mask for all queries of a sequence, or, as for a window over the cache, one for each."""
    monkeypatch.setattr(transformer, "rotate_and_attend", getattr(attention, way))
    config = replace(CONFIG, **more)
    *given, masks = inputs(0, config)
    if more:
        masks = (jnp.asarray(np.random.default_rng(2).random((ROWS, BATCH, LENGTH, SLOTS)) < 0.5),)
    given = (*given, masks)
    params = random_leaves(jax.eval_shape(Transformer(config).init, jax.random.key(0), *given), 1, 0.2)
    found, block = jax.jit(Transformer(config).apply)(params, *given)
    single, spread, repeated = of_single_heads(config, params, given)
    expected, states = jax.jit(Transformer(single).apply)(spread, *repeated)
    assert_close(found, expected, 1e-5)
    assert block[0][0].shape == (ROWS, BATCH, CONFIG.key_heads, LENGTH, CONFIG.head_dim)
    assert_close(jnp.repeat(block[1][0], CONFIG.groups, axis=2), states[1][0], 1e-5)


def test_kernels_leave_grouped_queries_to_xla():
    alone, grouped = (jax.ShapeDtypeStruct((1, 1, 4, parts, 8, 64), jnp.bfloat16) for parts in (3, 5))
    assert attention_way(alone) and attention_way(grouped) is None


def test_an_offset_is_added_to_the_scale(assert_close):
    x, scale = (
        np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32),
        np.arange(8.0, dtype=np.float32),
    )
    params = {"params": {"scale": scale}}
    found = RMSNorm(1e-6, offset=1).apply(params, jnp.asarray(x))
    assert_close(found, RMSNorm(1e-6).apply({"params": {"scale": 1 + scale}}, jnp.asarray(x)), 1e-6)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"kv_heads": 4}, "4 key-value heads do not fit 6 heads"),
        ({"kv_heads": 2, "qk_norm": "layer"}, "with a norm of each head"),
        ({"head_width": 6}, "whole multiple of 4"),
        ({"activation": "relu"}, "unknown activation 'relu'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, said):
    with pytest.raises(LanternError, match=said):
        TransformerConfig(24, 1, 6, 40, **sizes)
