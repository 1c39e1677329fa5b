"""Kernels of a layer: their axes, and the products that they stand for."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.kernels.ways import traced_on
from lantern_jax.models.positions import grid_rotary
from lantern_jax.models.transformer import Dense, Layer, RMSNorm, Transformer
from lantern_jax.models.transformer_config import TransformerConfig
from tests.tiny_checkpoint import random_parameters

CONFIG = TransformerConfig(dim=32, num_layers=2, num_heads=4, hidden_dim=48)
LENGTH = 16


def inputs():
    x = np.random.default_rng(1).standard_normal((2, LENGTH, CONFIG.dim)).astype(np.float32)
    rotary = jnp.broadcast_to(grid_rotary(4, CONFIG.head_dim), (2, LENGTH, CONFIG.head_dim // 2, 2))
    mask = jnp.broadcast_to(np.tril(np.ones((LENGTH, LENGTH), bool)), (2, LENGTH, LENGTH))
    return x, rotary, mask


def test_equal_layers_are_lowered_once_and_compute_the_same_as_one_by_one():
    """The first has no input norm here, so it is another function."""
    model = Transformer(replace(CONFIG, num_layers=5, input_norm=False))
    params = random_parameters(model, 0, 0.2, *inputs())
    lowered = jax.jit(model.apply).lower(params, *inputs())
    text = lowered.as_text()
    assert (
        len(re.findall(r"func private @apply\w*\(", text)) == 2
        and len(re.findall(r"call @apply\w*\(", text)) == 5
    )
    x, *others = inputs()
    for i in range(5):
        layer = Layer(model.config, i > 0, jnp.float32, jnp.float32)
        x, _ = layer.apply({"params": params["params"][f"layer_{i}"]}, x, *others, (), ())
    norm = RMSNorm(model.config.norm_eps)
    one_by_one = norm.apply({"params": params["params"]["norm"]}, x)
    np.testing.assert_allclose(lowered.compile()(params, *inputs())[0], one_by_one, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_equals_that_of_matrices_bit_for_bit(dtype):
    """Input and output axes change the shapes of a product and of its initial parameters, nothing else."""
    x = jax.random.normal(jax.random.key(1), (2, 5, 4, 8), jnp.float32)
    whole = Dense((3, 2, 6), dtype, jnp.float32, inputs=2)
    flat = Dense(36, dtype, jnp.float32)
    params, matrix = whole.init(jax.random.key(0), x), flat.init(jax.random.key(0), x.reshape(2, 5, 32))
    np.testing.assert_array_equal(params["params"]["kernel"].reshape(32, 36), matrix["params"]["kernel"])
    ours = jax.jit(whole.apply)(params, x)
    theirs = jax.jit(flat.apply)(matrix, x.reshape(2, 5, 32))
    assert ours.dtype == dtype and ours.shape == (2, 5, 3, 2, 6)
    np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)


@pytest.mark.parametrize(("rows", "is_turned"), [(2, False), (4, True), (32, False)])
def test_products_of_few_rows_are_transposed_on_cpus(rows, is_turned):
    """Products and gradients are the same, and only few rows get the barrier that leaves them to Eigen."""
    dense = Dense((2, 6), jnp.float32, jnp.float32, inputs=2)
    x = jax.random.normal(jax.random.key(1), (2, rows // 2, 4, 8))
    params = dense.init(jax.random.key(0), x)

    def loss(params, x):
        return jnp.sum(jnp.square(dense.apply(params, x)))

    with traced_on("cpu"):
        assert ("optimization_barrier" in str(jax.make_jaxpr(dense.apply)(params, x))) == is_turned
        ours = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, x)
    with traced_on("tpu"):
        assert "optimization_barrier" not in str(jax.make_jaxpr(dense.apply)(params, x))
    kernel = params["params"]["kernel"]

    def plainly(kernel, x):
        return jnp.sum(jnp.square(jnp.tensordot(x, kernel, 2)))

    expected = jax.jit(jax.value_and_grad(plainly, argnums=(0, 1)))(kernel, x)
    for one, another in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-5, atol=1e-6)
