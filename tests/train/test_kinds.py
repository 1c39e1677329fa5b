"""Every kind of drafter: training's passes against drafting, and what is particular to each kind."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import demo_parallel, tiny_drafter
from configs import tiny_target as tiny
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.checkpoints.store import load, model_directory
from lantern_jax.decoding.drafting.eagle import Stale
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.families.llamagen.model import LlamaGen
from lantern_jax.families.registry import family_of, target_of
from tests.cases import exhaustive, slow
from tests.refused import refused_each
from tests.tiny_checkpoint import random_leaves
from train import chains, drafter, features, sources, target
from train.feature_store import FeatureStore

SIZES = target.target_config(tiny.get_config())
TAPS = (0, 1)
# The last tap is the final feature, which training needs.
STORED = target_of(SIZES, jnp.dtype(jnp.float32), (*TAPS, SIZES.num_layers))
BATCH, DEPTHS = 4, 4
# The last place of the prefix.
FIRST = SIZES.label_slots - 1
MODELS = {
    "eagle": {"num_heads": 2, "hidden_dim": 64}, "eagle3": {"num_heads": 2, "hidden_dim": 64, "taps": TAPS},
    "medusa": {"heads": 3, "shared_head": True, "markov_rank": 4}, "medusa_own_heads": {"heads": 3, "layers": 2},
    "parallel": {"num_heads": 2, "hidden_dim": 64, "masks": 3, "markov_rank": 4},
}  # fmt: skip


def config_of(name, **changes):
    config = tiny_drafter.get_config()
    config.unlock()
    config.update({"kind": name.split("_")[0], "noise": 0.0, "passes": DEPTHS, **changes})
    config.anchors_kept, config.anchors_least = 0.7, 0.2
    config.model = ConfigDict(MODELS[name])
    return config


@cache
def target_params():
    return random_leaves(family_of(SIZES).shapes(SIZES)["params"], 0, 0.16)


@cache
def examples():
    """(conditioning, random tokens [B, T], features [G, B, S, 3 D], prefix [G, B, P]) of the random target."""
    params, generator = {"params": target_params()}, np.random.default_rng(0)
    conditioning = jnp.asarray(sources.random_labels(LANDSCAPES, generator, BATCH))
    tokens = jnp.asarray(generator.integers(0, SIZES.vocab_size, (BATCH, SIZES.num_tokens)), jnp.int32)
    return conditioning, tokens, *features.features_of(STORED)(params, conditioning, tokens)


@cache
def prefix_after(taps):
    prefill = jax.jit(target_of(SIZES, jnp.dtype(jnp.float32), taps).prefill, static_argnums=3)
    return prefill({"params": target_params()}, examples()[0], jnp.full(BATCH, 2.0), 32)[2]


@cache
def sizes_and_params(name):
    sizes = drafter.drafter_config(config_of(name), SIZES)
    kind = chains.kind_of(sizes)
    shapes = jax.eval_shape(lambda key: kind.init(kind.model(sizes), key), jax.random.key(0))
    return sizes, random_leaves(shapes, 1, 0.125)


@partial(jax.jit, static_argnames=("sizes", "scored"))
def chain(sizes, params, stored, prefix, tokens, scored=None):
    twice = jnp.broadcast_to(tokens[None], (2, *tokens.shape))
    inputs, _ = chains.drafter_inputs(stored[..., -chains.inputs_width(sizes) :], prefix, twice)
    kind, head = chains.kind_of(sizes), target_params()["head"]["kernel"]
    if scored is None:
        return kind.chain(kind.model(sizes), params, head, inputs, DEPTHS)
    config = ConfigDict({"scored": scored, "anchors_kept": 0.7, "anchors_least": 0.2})
    return kind.chain(kind.model(sizes), params, head, inputs, DEPTHS, jax.random.key(5), config)


def predictions(sizes, params):
    _, tokens, stored, prefix = examples()
    return chain(sizes, params, stored, prefix, tokens)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "medusa", *map(slow, ("medusa_own_heads", "parallel"))])
def test_training_predicts_what_decoding_drafts_below_a_root(name):
    """Given the tokens in between, in both guidance rows, and with unused rows after the absorbed ones.

    Refining passes over the whole chain end at the same logits: each makes one more place right.
    """
    sizes, params = sizes_and_params(name)
    _, tokens, stored, _ = examples()
    taps = getattr(sizes, "taps", ())
    given = stored[..., : len(taps) * SIZES.dim] if taps else stored[..., -SIZES.dim :]
    record = DRAFTERS[name.split("_")[0]].make(sizes, jnp.float32)
    both = {"drafter": {"params": params}, "head": target_params()["head"]["kernel"]}
    guidance, span, places = np.full(BATCH, 2.0, np.float32), 4, np.arange(4)[None]
    tokens, given = np.asarray(tokens), np.asarray(given)
    state = jax.jit(record.init, static_argnums=(2, 3, 4))(both, prefix_after(taps), 32, span, 8)
    absorb, expand = jax.jit(record.absorb), jax.jit(record.expand)
    # Two rounds: three tokens, then two; the rest of the four places holds noise.
    for begin, taken in ((0, 3), (3, 2)):
        there = begin + np.broadcast_to(np.minimum(places, taken - 1), (BATCH, span))
        following = np.where(places < taken, np.take_along_axis(tokens, there, axis=1), 5).astype(np.int32)
        # Position P - 1 + g holds token g and the feature before it.
        own = np.take_along_axis(given, FIRST + there[None, ..., None], axis=2)
        own = np.where((places < taken)[None, ..., None], own, np.float32(9))
        state, logits = absorb(both, state, own, following, np.full(BATCH, taken, np.int32))
    root, drafted = 4, [logits]
    for depth in range(1, DEPTHS):
        # A sibling without children stands before each node of the chain.
        node = np.stack([np.full(BATCH, depth, np.int32), tokens[:, root + depth]], axis=1)
        parent = np.full((BATCH, 2), 2 * (depth - 1), np.int32)
        state, logits = expand(both, state, node, parent)
        drafted.append(logits[:, 1])
    for depth, (predicted, logits) in enumerate(zip(predictions(sizes, params), drafted, strict=True)):
        row = int(np.flatnonzero(np.asarray(predicted.where) == FIRST + root + depth)[0])
        expected = apply_guidance(np.asarray(predicted.logits), guidance)[:, row]
        # Random EAGLE weights let the logits grow with depth, to some 330: float32 rounds in proportion.
        largest = np.abs(expected).max()
        np.testing.assert_allclose(logits, expected, atol=2e-5 * largest)
        assert largest > 0.5
    # What the root predicted stands before the first token of a chain; nothing else is known.
    shape = BATCH, DEPTHS - 1
    unknown = Stale(np.ones((2, *shape, given.shape[-1]), np.float32), np.zeros(shape, bool))
    refine, predicted, below = jax.jit(record.refine), None, tokens[:, root + 1 : root + DEPTHS]
    for _ in range(DEPTHS - 1):
        logits, predicted = refine(both, state, np.zeros(BATCH, np.int32), below, unknown, predicted)
    for place, expected in enumerate(drafted[1:]):
        np.testing.assert_allclose(logits[:, place], expected, atol=2e-5 * np.abs(expected).max())
    if name == "eagle":
        # Its features are as wide as the target's: given the right ones in either argument, a single pass is right.
        known = np.broadcast_to([False, True, False], shape)
        told = np.where(known[None, ..., None], np.roll(predicted, 1, axis=2), np.nan)
        others = np.where(np.roll(known, -1, axis=1)[None, ..., None], np.nan, predicted)
        again, _ = refine(both, state, np.zeros(BATCH, np.int32), below, Stale(told, known), others)
        np.testing.assert_allclose(again, logits, atol=2e-5 * np.abs(logits).max())


# EAGLE's positions are chosen as EAGLE-3's are.
@pytest.mark.parametrize(
    "name", [exhaustive("eagle"), "eagle3", "medusa", "medusa_own_heads", slow("parallel")]
)
def test_scored_positions_are_a_subset_of_all(name):
    sizes, params = sizes_and_params(name)
    _, tokens, stored, prefix = examples()
    part = chain(sizes, params, stored, prefix, tokens, scored=0.5)
    for depth, (some, every) in enumerate(zip(part, predictions(sizes, params), strict=True)):
        rows = [int(np.flatnonzero(np.asarray(every.where) == place)[0]) for place in np.asarray(some.where)]
        assert 0 < len(set(rows)) == len(rows) <= len(every.where) / 2 + 1, depth
        wanted = np.asarray(every.logits)[:, :, rows]
        np.testing.assert_allclose(some.logits, wanted, atol=2e-5 * np.abs(wanted).max())


def test_stored_features_are_those_of_the_whole_sequence():
    conditioning, tokens, stored, prefix = examples()
    assert stored.shape == (2, BATCH, FIRST + 16, 3 * SIZES.dim)
    np.testing.assert_array_equal(prefix, np.zeros((2, BATCH, FIRST + 1)))
    null = jnp.broadcast_to(LANDSCAPES.null_labels()[None], conditioning.shape)
    apply = jax.jit(LlamaGen(SIZES).apply)
    for rows, found in zip((conditioning, null), stored[..., -SIZES.dim :], strict=True):
        whole, _ = apply({"params": target_params()}, rows, tokens)
        np.testing.assert_allclose(found[:, FIRST:], whole, atol=2e-4)


@pytest.mark.parametrize("name", ["eagle3", "medusa", "parallel"])
def test_shapes_are_those_of_training(name):
    sizes, params = sizes_and_params(name)
    assert jax.tree.map(np.shape, DRAFTERS[name].shapes(sizes)["params"]) == jax.tree.map(np.shape, params)


# EAGLE-3's gradients are compared with finite differences below.
@pytest.mark.parametrize("name", ["medusa", exhaustive("medusa_own_heads"), slow("parallel")])
@pytest.mark.usefixtures("optax_promotion")
def test_training_lowers_the_loss(name):
    config = config_of(name, passes=2, token_weight=0.0, feature_weight=0.0, guided_weight=1.0, steps=12)
    sizes = drafter.drafter_config(config, SIZES)
    _, tokens, stored, prefix = examples()
    stored = np.swapaxes(stored[..., -chains.inputs_width(sizes) :], 0, 1)
    batch = {"features": stored, "prefix": np.swapaxes(prefix, 0, 1), "tokens": tokens}
    initial = drafter.start_modules(config, sizes, {"params": target_params()})
    task = drafter.make_task(config, sizes, initial=initial)
    state = jax.jit(task.init)(jax.random.key(0), *task.initial)
    kept = jax.tree.map(
        np.asarray, {part: state.params[part] for part in config.frozen if part in state.params}
    )
    head = target_params()["head"]["kernel"]
    update, losses = jax.jit(task.update), []
    for step in range(12):
        state, metrics = update(state, batch, jax.random.fold_in(jax.random.key(1), step), head)
        losses.append(float(metrics["loss"]))
    assert np.all(np.isfinite(losses)) and np.mean(losses[-3:]) < losses[0] - 0.05
    # The target's table stays the same bit for bit, so that a checkpoint holds it once.
    for part, leaves in kept.items():
        jax.tree.map(np.testing.assert_array_equal, leaves, state.average[part])
        jax.tree.map(np.testing.assert_array_equal, leaves, target_params()[part])


def test_heads_start_with_the_targets_logits():
    config = config_of("medusa_own_heads")
    sizes, head = drafter.drafter_config(config, SIZES), target_params()["head"]["kernel"]
    initial = drafter.start_modules(config, sizes, {"params": target_params()})
    task = drafter.make_task(config, sizes, initial=initial)
    params = jax.jit(task.init)(jax.random.key(0), initial).params
    feature = examples()[2][0, :, 5, -SIZES.dim :]
    logits = chains.kind_of(sizes).model(sizes).apply({"params": params}, feature, head)
    for row in range(3):
        np.testing.assert_allclose(logits[:, row], feature @ head, atol=1e-4)


def test_a_run_starts_from_the_modules_that_a_checkpoint_has(monkeypatch):
    """A parallel drafter made from an EAGLE one: its depth 0 is that drafter; wrong sizes are refused."""
    demo = load(model_directory("demo"), np.float32)
    demo = dataclasses.replace(demo, drafters={"eagle": demo.drafters["eagle"]})
    monkeypatch.setattr(drafter, "load", lambda directory, dtype: demo)
    config = demo_parallel.get_config()
    config.start_from = str(model_directory("demo"))
    sizes = drafter.drafter_config(config, demo.target_config)
    initial = drafter.start_modules(config, sizes, demo.target_params)
    assert set(initial) == {"tokens", "fc", "transformer"}
    own = demo.drafters["eagle"][1]["params"]["fc"]["kernel"]
    np.testing.assert_array_equal(initial["fc"]["kernel"], own)
    config.model.hidden_dim = 64
    with pytest.raises(ValueError, match=r"has no drafter of these sizes: change --config\.model"):
        drafter.start_modules(config, drafter.drafter_config(config, demo.target_config), demo.target_params)


def test_own_heads_start_from_those_of_a_checkpoint(monkeypatch):
    """Also for a target whose head has two layers."""
    sizes, params = sizes_and_params("medusa_own_heads")
    trained = Checkpoint("tiny", SIZES, {}, drafters={"medusa": (sizes, {"params": params})})
    monkeypatch.setattr(drafter, "load", lambda directory, dtype: trained)
    config = config_of("medusa_own_heads", start_from="trained")
    for head in (target_params()["head"], {"up": {}, "down": {}}):
        initial = drafter.start_modules(config, sizes, {"params": {"head": head}})
        jax.tree.map(np.testing.assert_array_equal, initial, params)


def test_every_depth_scores_some_positions():
    def check(name="medusa", **changes):
        return lambda: drafter.check_positions(config_of(name, **changes), sizes_and_params(name)[0], 16)

    for scored in (0.0, 1.5):
        refused_each({f"--config.scored {scored} is not valid": check(scored=scored)})
    refused_each({
        "--config.passes 16: give 1 to 15": check(passes=16),
        "--config.scored 0.2 of 15 positions is too few for 4 passes of heads": check(scored=0.2),
    })  # fmt: skip
    check(scored=0.25)()
    check("parallel", scored=0.01)()


def test_unknown_kinds_are_named():
    config = config_of("eagle")
    config.kind = "hydra"
    with pytest.raises(ValueError, match="unknown kind 'hydra' of drafter: choose one of eagle, eagle3"):
        drafter.drafter_config(config, SIZES)


def slope(name):
    """Returns slopes of the mean squared logits along a random direction, by the gradient and by a difference."""
    sizes, params = sizes_and_params(name)
    examples()  # So that the cached values do not come from a trace.
    keys = jax.random.split(jax.random.key(9), len(jax.tree.leaves(params)))
    keys = jax.tree.unflatten(jax.tree.structure(params), list(keys))
    direction = jax.tree.map(lambda key, leaf: jax.random.normal(key, leaf.shape), keys, params)

    def value(step):
        moved = jax.tree.map(lambda leaf, along: leaf + step * along, params, direction)
        return jnp.mean(jnp.square(predictions(sizes, moved)[2].logits))

    @jax.jit
    def along(step):
        return jax.jvp(value, (step,), (jnp.float32(1),))

    size = 3e-4
    (less, _), (_, by_gradient), (more, _) = (along(jnp.float32(step)) for step in (-size, 0, size))
    return float(by_gradient), float((more - less) / np.float32(2 * size))


@pytest.mark.slow
def test_gradients_reach_earlier_steps_in_eagle3_alone():
    by_gradient, by_difference = slope("eagle3")
    np.testing.assert_allclose(by_gradient, by_difference, rtol=0.03)
    by_gradient, by_difference = slope("eagle")
    assert abs(by_gradient / by_difference - 1) > 0.05


@pytest.mark.slow
def test_features_of_taps_end_with_the_final_ones(tmp_path):
    trained = Checkpoint(
        model="tiny", target_config=SIZES, target_params={"params": target_params()}, vocabulary=LANDSCAPES,
        defaults={"guidance": 2.0},
    )  # fmt: skip
    given = sources.landscapes(
        trained, np.zeros((3, 16), np.int16), np.zeros((3, LANDSCAPES.num_attributes), np.int32), 2, seed=0
    )
    stores = []
    for taps in ((), (0, 1, 2)):
        features.extract(trained, given, tmp_path / str(len(taps)), batch_size=4, taps=taps)
        stores.append(FeatureStore(tmp_path / str(len(taps))).read(range(5)))
    np.testing.assert_array_equal(stores[0][2], stores[1][2])
    assert stores[1][0].shape[-1] == 3 * SIZES.dim
    np.testing.assert_allclose(stores[0][0], stores[1][0][..., -SIZES.dim :], atol=2e-3)
    with pytest.raises(ValueError, match=r"taps \(0, 1\) do not end with the final features, 2"):
        features.extract(trained, given, tmp_path / "no", taps=(0, 1))
    with pytest.raises(ValueError, match="holds work on another taps"):
        features.extract(trained, given, tmp_path / "3", batch_size=4)
