"""The account compiles what an engine compiles: the same programs for the same shapes in the same places."""

import jax
import numpy as np
import pytest

from eval.ahead.arguments import KINDS, Batch
from eval.ahead.compiling import compile_batch, compile_call
from eval.ahead.fit import least_of, need_there
from eval.ahead.rows import row_of
from eval.ahead.slices import slice_of
from eval.ahead.survey import shapes_of_size
from lantern_jax.apps.measuring.random_models import random_model
from lantern_jax.apps.measuring.shapes import size_shapes
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine import compiler
from lantern_jax.engine.engine import Engine
from lantern_jax.families.registry import family_of
from tests.cases import exhaustive

MODEL = random_model("tiny")
OPTIONS = {"method": "gumbel:tree=0"}


@pytest.fixture(scope="module")
def shapes():
    return size_shapes("tiny", "float32")


def described(tree):
    """Returns a tree's structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    dtypes = [
        (np.shape(leaf), np.dtype("uint32") if str(leaf.dtype).startswith("key") else leaf.dtype)
        for leaf in leaves
    ]
    return structure, dtypes


def places(tree) -> list:
    """Returns how each array on devices is spread over them; host values have no place yet."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if not isinstance(leaf, np.ndarray | np.generic)]
    spread = [(leaf.sharding, leaf.shape) for leaf in leaves if getattr(leaf, "sharding", None) is not None]
    return [sharding.shard_shape(shape) for sharding, shape in spread]


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid",
    [exhaustive((1, 1), id="one device"), pytest.param((2, 2), id="a mesh")],
)
def test_programs_are_those_of_the_engine(grid, shapes, monkeypatch):
    devices = np.array(jax.devices()[: grid[0] * grid[1]]).reshape(grid)
    made = {}

    def recorded(function, *arguments, **options):
        # Only the first of each: regrouping also compiles the program that advances the smaller batch.
        made.setdefault(function.func.__name__, (function, arguments, options))
        return compiled(function, *arguments, **options)

    compiled = compiler.compile_ahead
    monkeypatch.setattr(compiler, "compile_ahead", recorded)
    job = shapes.job(OPTIONS)
    engine = Engine(
        lambda where: MODEL.read(np.dtype("float32"), where), None, devices,
        lambda name, parameters, where: MODEL.read_drafter(np.dtype("float32"), name, parameters, where),
    )  # fmt: skip
    run = engine.start(job, MODEL.conditioning(2))
    slots = np.array([0, 1]) if grid[0] == 2 else np.array([0])
    run = engine.refill(run, slots, MODEL.conditioning(len(slots)), slots)
    if grid[0] == 1:
        engine.regroup(run, np.array([1]))

    batch = Batch(shapes, job, 2, devices)
    started = compile_call("start", batch.start(), "cpu").program
    state = batch.state_shapes(started)
    for kind in ("start", "advance", "refill", "regroup"):
        call = getattr(batch, kind)(*(() if kind == "start" else state))
        if kind == "regroup" and grid[0] == 2:
            assert call is None
            continue
        function, arguments, options = made[kind]
        if kind == "start":
            assert call.function.args == function.args
        assert call.function.func is function.func
        assert described(call.arguments) == described(arguments), kind
        assert places(call.arguments) == places(arguments), kind
        assert (call.state is not None) == (options.get("donate") == "state")
        assert (call.results is None) == (options.get("results") is None)


@pytest.mark.slow
def test_programs_of_this_machine_become_rows(shapes):
    """A CPU stands in for a device that is not here: memory is counted, its work is not."""
    batch = Batch(shapes, shapes.job({"method": "ar"}), 2, np.array(jax.devices()[:1])[:, None])
    rows = [row_of(slice_of("v5e"), "tiny", "plain", 2, made) for made in compile_batch(batch, KINDS, "cpu")]
    assert [row.program for row in rows] == ["start", "advance", "refill", "regroup"], "nothing to draw with"
    start, advance, refill, _ = rows
    assert advance.state_bytes > 0 and advance.arguments_bytes > advance.state_bytes
    assert refill.state_bytes == advance.state_bytes and start.state_bytes == 0
    assert all(row.error is None and row.compile_seconds >= 0 for row in rows)


@pytest.mark.slow
def test_a_need_matches_the_arrays(shapes):
    """Parameters and caches are what their shapes say; a batch of twice the pictures keeps twice the state."""
    here = np.array(jax.devices()[:1])[:, None]
    batches = [Batch(shapes, shapes.job(OPTIONS), count, here) for count in (2, 4)]
    two, four = (need_there(batch, None, 10**9, ("start", "advance")) for batch in batches)
    config, drafter = shapes.recipe.config, shapes.recipe.drafters["eagle"]
    of_drafter = jax.tree.leaves(DRAFTERS["eagle"].shapes(drafter))
    values = sum(leaf.size for leaf in [*jax.tree.leaves(family_of(config).shapes(config)), *of_drafter])
    # The head is the target's; beside parameters there are keys and scales.
    assert 4 * values <= two.parameters <= four.parameters < 4 * values + 200
    # Keys and values of both guidance rows, for the prefix and every token, in target and drafter at least.
    slots = 2 * 2 * (config.num_layers + 1) * config.dim * (1 + config.num_tokens)
    assert 4 * 2 * slots <= two.state <= 2 * 4 * 2 * slots
    np.testing.assert_allclose(four.state, 2 * two.state, rtol=0.02)
    assert 0 < two.working < four.working
    least = least_of(batches[0])
    assert 0.99 * two.total < least.total + two.working <= two.total


@pytest.mark.parametrize(
    ("size", "grid", "count"),
    [
        ("chameleon-7b", (1, 1), 1),
        ("chameleon-7b", (2, 4), 8),
        ("llamagen-b", (1, 1), 4),
        ("demo", (1, 1), 4),
    ],
)
def test_a_pass_draws_as_many_pictures_as_a_large_one_has_pixels(size, grid, count):
    devices = np.array(jax.devices() * 2)[: grid[0] * grid[1]].reshape(grid)
    assert Batch(shapes_of_size(size), None, 64, devices).drawn_together == count
