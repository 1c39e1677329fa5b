"""Strict gumbel decoding is plain decoding, token for token: every shipped tree and every other way of drafting.

What is traced (temperature, the drafter's quality, which sequences are active) shares one compiled program.
"""

import itertools
from functools import cache

import jax
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.jacobi import INITIALS, Window, jacobi, pac
from lantern_jax.decoding.drafting.led import led_window
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.echo import Echo
from lantern_jax.decoding.tree import DraftTree, DynamicTree, named_tree, tree_names

from . import toy_models as toys
from .topologies import traced_drafting

BUSHY = toys.BUSHY
TREES = {name: named_tree(name) for name in tree_names()} | {"bushy": BUSHY}


def cases(*chosen):
    """Returns all (tree, guided); the ones not chosen are for exhaustive runs."""
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


SAMPLING = {
    "all": {},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "both": {"top_k": 12, "top_p": 0.9},
}


def decode(tree, batch, guided, temperature, noise, seed=0, filters="all", topology="static", **more):
    """Decodes with a copy of the target."""
    drafting = eagle(toys.copy_drafter(), tree)
    drafting = traced_drafting(drafting, tree) if topology == "traced" else drafting
    return toys.decode(
        drafting, temperature, guided, noise, batch=batch, seed=seed, **SAMPLING[filters], **more
    )


@cache
def plain(guided, temperature, seed=0, filters="all"):
    """Returns tokens [ROWS, T] of plain decoding, in one batch on one device."""
    tokens = toys.decode(PLAIN, temperature, guided, seed=seed, **SAMPLING[filters]).tokens
    assert len(np.unique(tokens, axis=0)) >= 5, "sequences are alike: their equality would show little"
    return tokens


def check(decoded, expected):
    """Checks tokens, that none is substituted, and that rounds and accepted tokens add up; counts the latter."""
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
        options = {"devices": 8, "active": batch}
        expected = plain(guided, 1.0, seed)[:batch]
        for noise in GOOD if batch == ROWS else GOOD[:1]:
            good = good + check(decode(tree, ROWS, guided, 1.0, noise, seed, **options), expected)
        check(decode(tree, ROWS, guided, 1.0, RANDOM, seed, **options), expected)
    assert (good > 0).all(), f"rounds that accepted 0, 1, ... tokens: {good}"


@pytest.mark.parametrize(
    "guided", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["unguided", "guided"]
)
def test_plain_decoding_on_eight_devices(guided):
    check(toys.decode(PLAIN, 1.0, guided, devices=8, active=5), plain(guided, 1.0)[:5])


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


# Ways of drafting from a drafter that is a noisy copy of the target: (tree, its noises, echo).
GROWN = {"frontier": 3, "children": 4}
DRAFTED = {
    "published": (DynamicTree(9, 4, **GROWN), (0.2, RANDOM), None),
    "gap": (DynamicTree(9, 4, ranking="gap", **GROWN), (0.2, RANDOM), None),
    "ddd": (DynamicTree(9, 4, threshold=0.3, checks=(2, 3), **GROWN), (0.2, RANDOM), None),
    "echo chain": (DraftTree.chain(3), (1.5,), Echo()),
    "echo": (BUSHY, (1.5,), Echo()),
    "echo gap": (DynamicTree(9, 4, ranking="gap", **GROWN), (1.5,), Echo()),
    "led chain": (Window(toys.VOCAB, DraftTree.chain(6)), (0.7, RANDOM), None),
    "led": (Window(toys.VOCAB, DraftTree.window(6, 2, 2)), (0.7, RANDOM), None),
}
# And windows without one.
WINDOWS = {
    **{initial: jacobi(toys.VOCAB, 6, initial, 5) for initial in INITIALS},
    "narrow": jacobi(toys.VOCAB, 1),
    "wider than a row": jacobi(toys.VOCAB, 9, "above", 5),
    "bushy window": pac(toys.VOCAB, 5, 3, 2, None),
    "forked": jacobi(toys.VOCAB, DraftTree.from_paths([*DraftTree.chain(4).paths, (2,), (2, 0), (0, 0, 1)])),
    "bushy to the end": pac(toys.VOCAB, 2, 2, 2, None, "repeat"),
}
# Most rounds, as a share of plain decoding's, with the least noise.
MOST = {"published": 0.8, "gap": 0.6, "ddd": 0.8}
# What has no forced tokens below decodes LlamaGen, guided. Greedy drafting differs in its draws alone.
GUIDED = (
    *((name, 1.0, True) for name in ("published", "gap", "echo", "echo gap", "led chain", "led")),
    *((name, 1.0, True) for name in ("left", "above", "forked")),
    ("ddd", 1.0, False), ("echo", 0.0, False), ("led", 0.0, True), ("bushy window", 0.0, True),
)  # fmt: skip


def drafted(name, stream):
    """Returns the drafting of a name for a stream's target."""
    if name in WINDOWS:
        return WINDOWS[name]
    tree, _, echo = DRAFTED[name]
    drafter = toys.copy_drafter(stream)
    return led_window(drafter, tree, 3) if isinstance(tree, Window) else eagle(drafter, tree, echo)


def equals_plain(name, stream, temperature, guided, **more):
    """Decodes with every noise of a name's drafter; returns the share of plain decoding's rounds with the least."""
    plain, shares = toys.decode(PLAIN, temperature, guided, name=stream), []
    for noise in DRAFTED[name][1] if name in DRAFTED else (None,):
        decoded = toys.decode(drafted(name, stream), temperature, guided, noise, stream, **more)
        batch = more.get("active", more.get("batch", ROWS))
        np.testing.assert_array_equal(decoded.tokens[:batch], plain.tokens[:batch])
        assert int(decoded.substituted.sum()) == 0
        shares.append(decoded.rounds[:batch].sum() / plain.rounds[:batch].sum())
    return shares[0]


@pytest.mark.parametrize(
    ("name", "temperature", "guided"),
    [
        pytest.param(*case, marks=() if case in GUIDED else pytest.mark.exhaustive)
        for case in itertools.product([*DRAFTED, *WINDOWS], (0.0, 1.0), (False, True))
    ],
)
def test_every_way_of_drafting_in_fewer_rounds(name, temperature, guided):
    assert equals_plain(name, "llamagen", temperature, guided) < MOST.get(name, 1)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [("led", 1.0), *((name, 1.0) for name in WINDOWS), ("left", 0.0), ("bushy window", 0.0)],
)
def test_every_way_of_drafting_among_forced_tokens(name, temperature):
    assert equals_plain(name, "chain", temperature, True) <= 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("led", "echo gap", "bushy window") else pytest.mark.exhaustive
        )
        for name in ("gap", "led", "echo gap", "repeat", "above", "bushy window")
    ],
)
def test_every_way_of_drafting_on_eight_devices(name):
    equals_plain(name, "llamagen", 1.0, True, devices=8, active=5)


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("repeat", "above")), "bushy window"],
)
def test_a_window_alone(name):
    equals_plain(name, "llamagen", 0.0, False, batch=1)
