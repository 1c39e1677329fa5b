"""Kernels of a layer: their axes, which a mesh splits without moving any, and the products that they stand for."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lantern_jax.models.positions import grid_rotary
from lantern_jax.models.transformer import Dense, Transformer, TransformerConfig

CONFIG = TransformerConfig(dim=32, num_layers=2, num_heads=4, hidden_dim=48)
LENGTH = 16
# What lies on the model axis: heads, and columns of the feed-forward layer.
SPLIT = {
    "qkv": PartitionSpec(None, None, "model", None),
    "out": PartitionSpec("model", None, None),
    "gate_up": PartitionSpec(None, None, "model"),
    "down": PartitionSpec("model", None),
}


def inputs():
    x = jax.random.normal(jax.random.key(1), (2, LENGTH, CONFIG.dim), jnp.float32)
    rotary = jnp.broadcast_to(grid_rotary(4, CONFIG.head_dim), (2, LENGTH, CONFIG.head_dim // 2, 2))
    mask = jnp.broadcast_to(np.tril(np.ones((LENGTH, LENGTH), bool)), (2, LENGTH, LENGTH))
    return x, rotary, mask


def test_axes_of_a_layers_kernels():
    params = jax.eval_shape(Transformer(CONFIG).init, jax.random.key(0), *inputs())["params"]["layer_1"]
    shapes = {name: params[name]["kernel"].shape for name in SPLIT}
    assert shapes == {"qkv": (32, 3, 4, 8), "out": (4, 8, 32), "gate_up": (32, 2, 48), "down": (48, 32)}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_is_that_of_matrices_to_the_bit(dtype):
    """Axes of inputs and of outputs change the shapes of a product and of the first parameters, nothing else."""
    x = jax.random.normal(jax.random.key(1), (2, 5, 4, 8), jnp.float32)
    whole = Dense((3, 2, 6), dtype, jnp.float32, inputs=2)
    flat = Dense(36, dtype, jnp.float32)
    params, matrix = whole.init(jax.random.key(0), x), flat.init(jax.random.key(0), x.reshape(2, 5, 32))
    np.testing.assert_array_equal(params["params"]["kernel"].reshape(32, 36), matrix["params"]["kernel"])
    ours = jax.jit(whole.apply)(params, x)
    theirs = jax.jit(flat.apply)(matrix, x.reshape(2, 5, 32))
    assert ours.dtype == dtype and ours.shape == (2, 5, 3, 2, 6)
    np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)


def test_a_model_axis_splits_heads_and_columns_and_gathers_nothing():
    """Two sums over the axis a layer, as many as its blocks; the values are those of one device."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    model, arguments = Transformer(CONFIG), inputs()
    params = jax.jit(model.init)(jax.random.key(0), *arguments)

    def place(path, leaf):
        return jax.device_put(leaf, NamedSharding(mesh, SPLIT.get(path[-2].key, PartitionSpec())))

    split = jax.tree_util.tree_map_with_path(place, params)
    kernel = split["params"]["layer_0"]["qkv"]["kernel"]
    assert kernel.addressable_shards[0].data.shape == (32, 3, 1, 8)
    whole = NamedSharding(mesh, PartitionSpec())
    arguments = jax.device_put(arguments, whole)
    compiled = jax.jit(model.apply).lower(split, *arguments).compile()
    features, (_, (keys, _)) = compiled(split, *arguments)
    assert keys.sharding.spec[1] == "model"
    hlo = compiled.as_text()
    assert not re.search(r"all-gather|all-to-all|collective-permute|reduce-scatter", hlo)
    assert len(re.findall(r"= \S+ all-reduce(?:-start)?\(", hlo)) == 2 * CONFIG.num_layers
    np.testing.assert_allclose(features, jax.jit(model.apply)(params, *inputs())[0], rtol=1e-5, atol=1e-5)
