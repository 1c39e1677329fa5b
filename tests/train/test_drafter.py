"""Training of the drafter, its passes against drafting itself, and trees from ranks."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import tiny_drafter, tiny_target
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.models.drafter import DrafterModel, eagle_drafter
from lantern_jax.models.llamagen import LlamaGen, llamagen_target
from lantern_jax.settings.settings import Settings
from lantern_jax.text.landscapes import LANDSCAPES
from train import chains, drafter, features, sources, target, tree
from train.encode import write_tokens
from train.feature_store import FeatureStore, count_shards

SIZES = target.target_config(tiny_target.get_config())
TARGET = llamagen_target(SIZES, jnp.dtype(jnp.float32))
DRAFTER = drafter.drafter_config(tiny_drafter.get_config(), SIZES)
BATCH = 4


@pytest.fixture(scope="module")
def models():
    """Parameters of a random target, loud enough to have opinions, and of a random drafter."""
    labels, tokens = jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 16), jnp.int32)
    params = jax.jit(LlamaGen(SIZES).init)(jax.random.key(0), labels, tokens)["params"]
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim == 2 else leaf, params)
    task = drafter.make_task(tiny_drafter.get_config(), DRAFTER)
    return params, jax.jit(task.init)(jax.random.key(1)).params


@pytest.fixture(scope="module")
def examples(models):
    """(conditioning, tokens, features, prefix) of some samples."""
    params, _ = models
    conditioning = jnp.asarray(sources.random_labels(np.random.default_rng(0), BATCH))
    keys = jax.random.split(jax.random.key(3), BATCH)
    tokens = features.sample_tokens(TARGET, {"params": params}, conditioning, keys, Settings(guidance=2.0))
    return conditioning, tokens, *features.features_of(TARGET)({"params": params}, conditioning, tokens)


def test_stored_features_are_those_of_the_whole_sequence(models, examples):
    """Of the pass in which the target was trained, over prefix and tokens together."""
    params, _ = models
    conditioning, tokens, stored, prefix = examples
    assert stored.shape == (2, BATCH, 4 + 16 - 1, SIZES.dim)
    np.testing.assert_array_equal(prefix, np.zeros((2, BATCH, 4)))
    null = jnp.broadcast_to(LANDSCAPES.null_labels()[None], conditioning.shape)
    apply = jax.jit(LlamaGen(SIZES).apply)
    for rows, found in zip((conditioning, null), stored, strict=True):
        whole, _ = apply({"params": params}, rows, jnp.asarray(tokens))
        np.testing.assert_allclose(found[:, 3:], whole, atol=2e-4)


def test_passes_are_what_the_drafter_does_below_a_root(models, examples):
    params, drafter_params = models
    conditioning, tokens, stored, prefix_tokens = examples
    twice = jnp.broadcast_to(tokens[None], (2, *tokens.shape))
    inputs, wanted = chains.drafter_inputs(stored, prefix_tokens, twice)
    np.testing.assert_array_equal(wanted[:, :, :-1], inputs.features[:, :, 1:])
    passes = jax.jit(chains.drafter_passes, static_argnums=(0, 3))
    made = passes(DrafterModel(DRAFTER), drafter_params, inputs, 4)

    record, head = eagle_drafter(DRAFTER), params["head"]["kernel"]
    both = {"drafter": {"params": drafter_params}, "head": head}
    guidance = jnp.full(BATCH, 2.0)
    absorb, expand = jax.jit(record.absorb), jax.jit(record.expand)
    _, _, prefix = jax.jit(TARGET.prefill, static_argnums=3)({"params": params}, conditioning, guidance, 32)
    state = record.init(both, prefix, 32, 7, 3)
    root = 6
    count = jnp.full(BATCH, root + 1, jnp.int32)
    state, _ = absorb(both, state, stored[:, :, 3 : 3 + root + 1], jnp.asarray(tokens[:, : root + 1]), count)
    chain = [state.features[:, :, 0]]
    for depth in range(1, 4):
        node = jnp.asarray(tokens[:, root + depth, None])
        state, _ = expand(both, state, node, jnp.full((BATCH, 1), depth - 1))
        chain.append(state.features[:, :, depth])
    for depth, expected in enumerate(chain):
        np.testing.assert_allclose(made[depth][:, :, 3 + root + depth], expected, atol=2e-4)


@pytest.mark.exhaustive  # The command that retrains the demo goes this way, in test_demo.
@pytest.mark.usefixtures("optax_promotion")
def test_the_whole_way_from_tokens_to_trees(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("train", 64), ("validation", 16)):
        attributes = rng.integers(0, 4, (count, 4)).astype(np.int32)
        tokens = (attributes[:, :1] * 16 + rng.integers(0, 4, (count, 16))).astype(np.int16)
        write_tokens(tmp_path / "tokens" / f"{name}.npz", tokens, attributes)
    config = tiny_target.get_config()
    config.steps = 40
    target.train(config, tmp_path / "tokens", tmp_path / "target")
    for pictures in (64, 64):
        trained = target.read_target(tmp_path / "target")
        tokens = (rows[:pictures] for rows in target.read_tokens(tmp_path / "tokens", "train"))
        features.extract(trained, sources.landscapes(trained, *tokens, 64, seed=0), tmp_path / "features")
    assert count_shards(tmp_path / "features") == 2
    assert len(FeatureStore(tmp_path / "features")) == 128
    config = tiny_drafter.get_config()
    drafter.train(config, tmp_path / "target", tmp_path / "features", tmp_path / "drafter")
    lines = (tmp_path / "drafter" / "metrics.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    assert last["loss"] < 0.8 * first["loss"]
    assert last["overlap_1"] > 0.8
    sizes, _ = drafter.export(tmp_path / "drafter", tmp_path / "target")
    assert sizes == DRAFTER
    trees = tree.grow(
        tmp_path / "target",
        tmp_path / "drafter",
        tmp_path / "trees",
        name="t",
        sizes=[4],
        pictures=16,
        seed=1,
    )
    assert DraftTree.from_paths(trees["t_4"]).num_nodes == 5
