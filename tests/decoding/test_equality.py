"""Strict gumbel decoding is plain decoding, token for token: every shipped tree, whatever helps it along.

What is traced (temperature, the drafter's quality, which sequences are active) shares one compiled program.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, named_tree, tree_names

from . import toy_models as toys
from .topologies import traced_drafting

# Few nodes, yet of every kind: siblings, nodes that have no child, three levels.
BUSHY = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
TREES = {name: named_tree(name) for name in tree_names()} | {"bushy": BUSHY}


def cases(*chosen):
    """The (tree, guided) that are chosen; all others as well for a run that has time."""
    every = [(name, guided) for name in TREES for guided in (False, True)]
    return [
        pytest.param(*case, id=f"{case[0]}-{'guided' if case[1] else 'unguided'}", marks=marks)
        for case in every
        for marks in [() if case in chosen else pytest.mark.exhaustive]
    ]


TEMPERATURES = (0.0, 1.0)
# Noise of a drafter that is a copy of the target: little, some, and so much that nothing of the target is left.
GOOD, RANDOM = (0.2, 0.7), 1e3
ROWS = 8
# Enough that drafts of every length are accepted, however deep the tree.
SEEDS = (0, 1, 2)


@cache
def mesh():
    return jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


SAMPLING = {
    "all": {},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "both": {"top_k": 12, "top_p": 0.9},
}


def decode(tree, batch, guided, temperature, drafter, seed=0, filters="all", topology="static", **more):
    """``drafter``: the noise of a copy of the target, or "eagle", the untrained drafter of the library."""
    target, params = toys.llamagen(), toys.target_params()
    conditioning = toys.conditioning(batch)
    if drafter == "eagle":
        drafter, drafter_params = toys.random_drafter()
    else:
        drafter_params = toys.noisy_params(params, conditioning, drafter)
        drafter = toys.noisy_drafter(target)
    drafting = eagle(drafter, tree) if tree is not None else PLAIN
    if topology == "traced":
        drafting = traced_drafting(drafting, tree)
    return speculative_decode(
        target, params, conditioning, toys.sequence_keys(seed, batch), drafting=drafting,
        drafting_params=drafter_params, guidance=jnp.full(batch, 2.5) if guided else None,
        sampling=SamplingParams.create(temperature, **SAMPLING[filters]), **more,
    )  # fmt: skip


@cache
def plain(guided, temperature, seed=0, filters="all"):
    """Tokens [ROWS, T] of plain decoding, all in one batch on one device."""
    decoded = autoregressive_decode(
        toys.llamagen(), toys.target_params(), toys.conditioning(ROWS), toys.sequence_keys(seed, ROWS),
        guidance=jnp.full(ROWS, 2.5) if guided else None,
        sampling=SamplingParams.create(temperature, **SAMPLING[filters]),
    )  # fmt: skip
    assert len(np.unique(decoded.tokens, axis=0)) >= 5, (
        "sequences are alike: their equality would show little"
    )
    return np.asarray(decoded.tokens)


def check(decoded, expected):
    """Tokens as expected, nothing substituted, and the counts of rounds and accepted tokens add up to them."""
    batch, length = expected.shape
    np.testing.assert_array_equal(decoded.tokens[:batch], expected)
    assert int(decoded.substituted.sum()) == 0 and bool(decoded.finite.all())
    accepted = np.asarray(decoded.accepted[:batch])
    np.testing.assert_array_equal(accepted @ (1 + np.arange(accepted.shape[1])), length - 1)
    np.testing.assert_array_equal(accepted.sum(axis=1), decoded.rounds[:batch])
    # Rows that only pad the batch are never begun.
    assert (np.asarray(decoded.tokens[batch:]) == -1).all()
    assert (np.asarray(decoded.rounds[batch:]) == 0).all()
    return accepted.sum(axis=0)


# A narrow tree and the demo's largest one, bushy ones below; the others are other numbers of the same.
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.exhaustive), 5])
@pytest.mark.parametrize(("name", "guided"), cases(("chain", True), ("demo_57", False)))
def test_one_device(name, batch, guided):
    tree, good, random = TREES[name], 0, 0
    # A greedy program more, but not for the largest tree.
    for temperature in TEMPERATURES[name == "demo_57" :]:
        # Greedy decoding draws nothing from its keys.
        for seed in SEEDS if temperature else SEEDS[:1]:
            expected = plain(guided, temperature, seed)[:batch]
            for noise in GOOD:
                good = good + check(decode(tree, batch, guided, temperature, noise, seed), expected)
            random = random + check(decode(tree, batch, guided, temperature, RANDOM, seed), expected)
    assert random[0] / random.sum() > good[0] / good.sum(), "the random drafter is no worse than the good one"
    if batch > 1:
        assert (good > 0).all(), f"rounds that accepted 0, 1, ... tokens: {good}"


@pytest.mark.parametrize(("name", "guided"), cases(("bushy", True)))
def test_eight_devices(name, guided):
    """Batches of 1, 5 and 8; the first two padded with sequences that are finished from the start."""
    tree, good = TREES[name], 0
    for batch, seed in ((1, 0), (5, 0), *((ROWS, seed) for seed in SEEDS)):
        options = {"mesh": mesh(), "active": jnp.arange(ROWS) < batch}
        expected = plain(guided, 1.0, seed)[:batch]
        for noise in GOOD if batch == ROWS else GOOD[:1]:
            good = good + check(decode(tree, ROWS, guided, 1.0, noise, seed, **options), expected)
        check(decode(tree, ROWS, guided, 1.0, RANDOM, seed, **options), expected)
    assert (good > 0).all(), f"rounds that accepted 0, 1, ... tokens: {good}"


# By default in test_methods.py and test_published_models.py, from a checkpoint.
@pytest.mark.parametrize(("name", "guided"), cases())
def test_an_untrained_drafter(name, guided):
    for temperature in TEMPERATURES:
        check(decode(TREES[name], 5, guided, temperature, "eagle"), plain(guided, temperature)[:5])


@pytest.mark.parametrize(
    "guided", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["unguided", "guided"]
)
def test_plain_decoding_on_eight_devices(guided):
    options = {"mesh": mesh(), "active": jnp.arange(ROWS) < 5}
    check(decode(None, ROWS, guided, 1.0, RANDOM, **options), plain(guided, 1.0)[:5])


@pytest.mark.parametrize(
    "filters", [*(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("top_k", "top_p")), "both"]
)
def test_filters(filters):
    expected = plain(True, 1.0, filters=filters)
    assert (expected != plain(True, 1.0)).any(), "the filters filter nothing"
    for noise in (*GOOD, RANDOM):
        check(decode(BUSHY, ROWS, True, 1.0, noise, filters=filters), expected)


# At temperature 0 both couplings are one.
@pytest.mark.parametrize(
    ("name", "temperature", "coupling"),
    [
        pytest.param("chain", 0.0, "gumbel", marks=pytest.mark.exhaustive),
        *(
            pytest.param(
                name,
                1.0,
                coupling,
                # Accept tests on a traced topology: test_loop.py too, on a target that compiles sooner.
                marks=() if (name, coupling) == ("bushy", "gumbel") else pytest.mark.exhaustive,
            )
            for name in TREES
            for coupling in ("gumbel", "rejection")
        ),
    ],
)
def test_a_traced_topology(name, temperature, coupling):
    """The fields of a tree as arrays with a batch axis give what the tree itself gives, every count included."""
    static, traced = (
        decode(TREES[name], 5, True, temperature, GOOD[1], topology=topology, coupling=coupling)
        for topology in ("static", "traced")
    )
    jax.tree.map(np.testing.assert_array_equal, traced, static)
    assert int(static.accepted[:, 1:].sum()) > 0
