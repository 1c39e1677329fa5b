"""Acceptance rules: A(x), m(x) and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lantern_jax.decoding.acceptance import (
    Codebook,
    Lantern,
    LanternPlusPlus,
    Probabilities,
    Strict,
    as_rule,
    check_codebook,
)
from tests.refused import refused

from .slow_verification import borrowed, rule_of


def lend(rule, p, table, token=0):
    """Returns (lenders, total) of one token under the distribution ``p`` [V], with neighbours ``table`` [k]."""
    neighbours = jnp.full((len(p), len(table)), -1, jnp.int32).at[token].set(jnp.asarray(table, jnp.int32))
    codebook = Codebook(neighbours, jnp.zeros((len(p), 2)))
    loan = lent_by(rule, jnp.asarray(p, jnp.float32), jnp.full(1, token, jnp.int32), codebook)
    return [int(code) for code in loan.lenders[0] if code >= 0], float(loan.lent[0])


@jax.jit
def lent_by(rule, p, token, codebook):
    current = Probabilities(at=lambda ids: p[ids], rows=lambda: p[None])
    return rule.lend(current, token, jnp.ones(1, jnp.int32), codebook)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["lantern", "lantern++"]), st.sampled_from([1, 3, 7]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_neighbour_mass_is_the_longest_prefix_within_the_bound(seed, name, k):
    """The table holds more than k; top-k can leave p(x) = 0, where delta still allows a loan and lambda none."""
    rng, most = np.random.default_rng(seed), 9
    near = (rng.random(most) * rng.integers(0, 2, most) / k).astype(np.float32)
    ids = np.where(np.arange(most) < rng.integers(0, most + 1), rng.permutation(most) + 1, -1).astype(
        np.int32
    )
    p_x = np.float32(rng.random() * 0.3 * (seed % 4 > 0))
    strength = rng.random() * 0.6 if name == "lantern" else 1 + 3 * rng.random()
    lenders, lent = lend(rule_of(name, k, strength), [p_x, *near], ids)
    inside, expected = borrowed(name, k, strength, np.array([p_x, *near]), 0, ids[None])
    assert lenders == inside or not lent
    np.testing.assert_allclose(lent, expected, rtol=1e-5)


def test_strict_by_name_and_by_k():
    assert as_rule("strict") == Strict() and Strict().is_strict and Strict().k == 0
    assert Lantern(k=0, delta=0.5).is_strict and not LanternPlusPlus(k=1, lam=1.0).is_strict
    assert isinstance(as_rule("lantern++"), LanternPlusPlus) and as_rule("lantern++").k == 10
    with refused("unknown rule 7: choose one of strict"):
        as_rule(7)


def test_an_unsigned_neighbour_table_gives_the_same_loans():
    """Although it cannot hold -1, the entry of a neighbour that lends nothing."""
    rule, p = Lantern(3, 0.25), jnp.array([0.4, 0.2, 0.3, 0.1])
    table = np.array([[1, 2, 3]] * 4)
    loans = [
        lent_by(rule, p, jnp.zeros(1, jnp.int32), Codebook(jnp.asarray(table, dtype), jnp.zeros((4, 2))))
        for dtype in (jnp.int32, jnp.uint16)
    ]
    jax.tree.map(np.testing.assert_array_equal, *loans)
    np.testing.assert_array_equal(loans[1].lenders, [[1, -1, -1]])


def test_codebooks_that_do_not_fit_are_refused():
    codebook = Codebook(neighbours=jnp.zeros((4, 2), jnp.int32), codes=jnp.zeros((4, 3)))
    check_codebook(Strict(), None)
    check_codebook(Lantern(2), codebook)
    below, beyond = (codebook.replace(neighbours=codebook.neighbours.at[1, 1].set(each)) for each in (-2, 4))
    check_codebook(Strict(), codebook.replace(neighbours=codebook.neighbours.at[1, 1].set(-1)))
    for message, arguments in {
        "needs a codebook": (Lantern(2), None),
        "the codebook has 4 rows of neighbours and 4 codes, the target 5": (Strict(), codebook, 5),
        "the codebook has 4 rows of neighbours and 3 codes, the target 4": (
            Strict(),
            codebook.replace(codes=codebook.codes[:3]),
            4,
        ),
        "the neighbour table holds ids from 0 to 4: give -1": (Strict(), beyond),
        "the neighbour table holds ids from -2 to 0: give -1": (Strict(), below),
        "the table stores 2": (Lantern(3), codebook),
    }.items():
        with refused(message):
            check_codebook(*arguments)
