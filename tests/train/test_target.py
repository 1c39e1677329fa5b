"""Training of the target: recipe and falling loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from configs import tiny_target
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from train import averaging, target
from train.loop import loop_config, run

# Rows of the kernels below as matrices.
INPUTS = {"qkv": 8, "out": 8, "gate_up": 8, "down": 12}


def get_config():
    """Returns the tiny target with one layer, which compiles in half the time of two."""
    config = tiny_target.get_config()
    config.model.num_layers = 1
    return config


def simple_tokens(count, seed=0):
    """Returns tokens that the first attribute nearly determines, so that labels help."""
    rng = np.random.default_rng(seed)
    attributes = np.zeros((count, LANDSCAPES.num_attributes), np.int32)
    attributes[:, 0] = rng.integers(0, 4, count)
    tokens = attributes[:, :1] * 16 + rng.integers(0, 4, (count, 16))
    return tokens.astype(np.int16), attributes


def test_the_rate_rises_and_falls_to_zero_at_the_end():
    schedule = averaging.linear_decay(0.5, 10, 110)
    np.testing.assert_allclose([schedule(s) for s in (0, 5, 10, 60, 110)], [0, 0.25, 0.5, 0.25, 0], atol=1e-7)


def test_labels_are_dropped_together_and_one_by_one():
    labels = jnp.asarray(LANDSCAPES.label_ids(np.ones((20000, LANDSCAPES.num_attributes), np.int32)))
    null = LANDSCAPES.null_labels()
    dropped = np.asarray(target.drop_labels(labels, null, jax.random.key(0), 0.1, 0.15))
    missing = dropped == null
    assert np.all(missing | (dropped == np.asarray(labels)))
    np.testing.assert_allclose(missing.mean(axis=0), 1 - 0.9 * 0.85, atol=0.01)
    np.testing.assert_allclose(
        missing.all(axis=1).mean(), 0.1 + 0.9 * 0.15**LANDSCAPES.num_attributes, atol=0.01
    )
    np.testing.assert_array_equal(target.drop_labels(labels, null, jax.random.key(0), 0.0, 0.0), labels)
    assert np.all(target.drop_labels(labels, null, jax.random.key(0), 1.0, 0.0) == null[None])


def test_muon_takes_the_layers_matrices_and_their_outputs_start_small():
    config = tiny_target.get_config()
    tokens, attributes = simple_tokens(8)
    params = jax.jit(target.make_task(config, tokens, attributes).init)(jax.random.key(0)).params
    numbers = averaging.matrices("layer_")(params)
    taken = numbers["transformer"]["layer_0"]
    assert all(taken[name]["kernel"] is not None for name in ("qkv", "out", "gate_up", "down"))
    assert taken["attention_norm"]["scale"] is None
    assert numbers["head"]["kernel"] is None and numbers["tokens"]["embedding"] is None
    for name, spread in (("qkv", 0.02), ("out", 0.01), ("gate_up", 0.02), ("down", 0.01)):
        np.testing.assert_allclose(np.std(params["transformer"]["layer_1"][name]["kernel"]), spread, rtol=0.1)


@pytest.mark.parametrize(
    ("said", "dtype"), [({}, "float32"), ({"dtype": "auto"}, "float32"), ({"dtype": "bfloat16"}, "bfloat16")]
)
def test_products_have_the_experiments_dtype_or_one_that_suits_a_cpu(said, dtype):
    assert averaging.compute_dtype(ConfigDict(said)) == jnp.dtype(dtype)


@pytest.mark.usefixtures("optax_promotion")
def test_muon_sees_kernels_as_matrices():
    shapes = {"qkv": (8, 3, 2, 4), "out": (2, 4, 8), "gate_up": (8, 2, 12), "down": (12, 8)}
    numbers = averaging.matrices("layer_")
    make = partial(averaging.make_optimizer, get_config())

    @partial(jax.jit, static_argnums=0)
    def step(optimizer, trees):
        layers = [{name: {"kernel": leaf} for name, leaf in tree.items()} for tree in trees]
        params, *gradients = ({"layer_0": layer} for layer in layers)
        state = optimizer.init(params)
        for gradient in gradients:
            changes, state = optimizer.update(gradient, state, params)
        return {name: changes["layer_0"][name]["kernel"] for name in shapes}

    noise = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(noise.normal(size=shape), jnp.float32)  # noqa: E731
    trees = [{name: draw(shape) for name, shape in shapes.items()} for _ in range(4)]
    flat = [{name: leaf.reshape(INPUTS[name], -1) for name, leaf in tree.items()} for tree in trees]
    ours, theirs = (step(make(numbers), each) for each in (trees, flat))
    for name, shape in shapes.items():
        assert ours[name].shape == shape and np.abs(ours[name]).max() > 0
        np.testing.assert_array_equal(ours[name].reshape(INPUTS[name], -1), theirs[name])


def test_scales_and_biases_of_heads_are_not_matrices():
    """Those of Chameleon's layers, and of layers with biases."""
    layer = {
        "qkv": {"kernel": (8, 3, 2, 4), "bias": (3, 2, 4)},
        "query_norm": {"scale": (2, 4), "bias": (2, 4)},
    }
    params = jax.tree.map(np.zeros, {"layer_0": layer}, is_leaf=lambda leaf: isinstance(leaf, tuple))
    numbers = averaging.matrices("layer_")(params)["layer_0"]
    assert numbers["qkv"]["kernel"].reduction_axis == (0,)
    assert [numbers["qkv"]["bias"], *numbers["query_norm"].values()] == [None] * 3


@pytest.mark.usefixtures("optax_promotion")
def test_stacked_matrices_take_the_same_steps_as_one_by_one():
    """Two of the same shape in different places, one whose inputs are two axes, and one leaf that is no matrix."""
    shapes = {"a": (6, 4), "b": (4, 6), "c": (6, 4), "norm": (4,), "out": (2, 4, 4)}
    names = {"a": "qkv", "b": "down", "c": "gate_up", "norm": "norm", "out": "out"}
    numbers = averaging.matrices("layer_")
    make = partial(averaging.make_optimizer, get_config())
    noise = np.random.default_rng(0)
    params, *gradients = (
        {
            f"layer_{n}": {names[n]: {"kernel": np.float32(noise.normal(size=shape))}}
            for n, shape in shapes.items()
        }
        for _ in range(3)
    )

    def steps(optimizer):
        state, moved = optimizer.init(params), params
        for gradient in gradients:
            changes, state = optimizer.update(gradient, state, moved)
            moved = optax.apply_updates(moved, changes)
        return moved

    alone, together = (
        jax.jit(lambda o=o: steps(o))() for o in (make(numbers), averaging.stacked(numbers, make))
    )
    assert jax.tree.all(jax.tree.map(lambda new, old: bool((new != old).any()), together, params))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), together, alone)


@pytest.mark.slow
@pytest.mark.usefixtures("optax_promotion")
def test_training_lowers_the_loss_and_labels_help(tmp_path):
    config = get_config()
    tokens, attributes = simple_tokens(256)
    task = target.make_task(config, tokens, attributes)
    state = run(task, loop_config(config), tmp_path, devices=jax.devices()[:1])
    sizes = target.target_config(config)
    held_out, shown = simple_tokens(32, seed=1)
    params = jax.tree.map(np.asarray, state.average)
    with_labels, without = target.validation_loss(sizes, params, held_out, LANDSCAPES.label_ids(shown))
    # The tokens' own entropy is log 4 per token, plus log 4 / 16 for the label where it is not given.
    assert np.log(4) - 0.02 < with_labels < np.log(4) + 0.1
    assert without > with_labels + 0.03
