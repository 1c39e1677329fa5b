"""Acceptance rules: A(x), m(x) and bad input."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lantern_jax.decoding.acceptance import (
    Codebook,
    Lantern,
    LanternPlusPlus,
    Strict,
    check_codebook,
    code_distance,
    is_strict,
    neighbour_mass,
    rule_from_name,
    token_neighbours,
)


def prefix(p_x, near, ids, bound):
    """A(x) by a plain loop."""
    inside, total = [False] * len(near), 0.0
    for place, (p, code) in enumerate(zip(near, ids, strict=True)):
        if code < 0 or total + p > bound:
            break
        inside[place] = True
        total += p
    return ([False] * len(near), 0.0) if total == 0 else (inside, total)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["lantern", "lantern++"]), st.integers(1, 7))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_neighbour_mass_is_the_longest_prefix_within_the_bound(seed, name, k):
    rng = np.random.default_rng(seed)
    near = (rng.random(k) * rng.integers(0, 2, k) / k).astype(np.float32)
    ids = np.where(np.arange(k) < rng.integers(0, k + 1), np.arange(k), -1).astype(np.int32)
    p_x = np.float32(rng.random() * 0.3)
    rule = rule_from_name(name, k, delta=rng.random() * 0.6, lam=1 + 3 * rng.random())
    bound = float(rule.delta) if name == "lantern" else (float(rule.lam) - 1) * p_x
    inside, mass = neighbour_mass(rule, jnp.asarray([p_x]), jnp.asarray(near[None]), jnp.asarray(ids[None]))
    expected_inside, expected_mass = prefix(p_x, near, ids, bound)
    np.testing.assert_array_equal(inside[0], expected_inside)
    np.testing.assert_allclose(mass[0], expected_mass, rtol=1e-5)


def test_the_bounds_are_the_papers():
    p = jnp.asarray([0.1, 0.0])
    np.testing.assert_allclose(rule_from_name("lantern", 3, delta=0.25).bound(p), [0.25, 0.25])
    np.testing.assert_allclose(rule_from_name("lantern++", 3, lam=4.0).bound(p), [0.3, 0.0])


def test_a_token_without_probability_can_be_carried_by_delta_but_not_by_lambda():
    """Top-k can leave p(x) = 0: LANTERN still lends its neighbours' mass, LANTERN++ lends nothing."""
    p_x, near, ids = jnp.zeros(1), jnp.asarray([[0.05, 0.05]]), jnp.asarray([[1, 2]], jnp.int32)
    _, mass = neighbour_mass(rule_from_name("lantern", 2, delta=0.2), p_x, near, ids)
    np.testing.assert_allclose(mass, [0.1])
    inside, mass = neighbour_mass(rule_from_name("lantern++", 2, lam=9.0), p_x, near, ids)
    assert mass[0] == 0 and not inside.any()


def test_strict_by_name_and_by_k():
    assert is_strict(rule_from_name("strict")) and is_strict(rule_from_name("lantern", 0, delta=0.5))
    assert not is_strict(rule_from_name("lantern++", 1, lam=1.0))
    assert Strict().k == 0
    assert isinstance(rule_from_name("lantern", 3), Lantern)
    assert isinstance(rule_from_name("lantern++", 3), LanternPlusPlus)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "loose"}, "unknown rule 'loose': choose one of strict, lantern"),
        ({"name": "lantern", "k": -1}, "k = -1"),
        ({"name": "lantern", "k": 1.5}, "k = 1.5"),
        ({"name": "lantern++", "k": 50, "vocab_size": 50}, "k = 50 .* < 50"),
        ({"name": "lantern", "k": 3, "delta": 1.0}, "delta 1.0"),
        ({"name": "lantern", "k": 3, "delta": -0.1}, "delta -0.1"),
        ({"name": "lantern", "k": 3, "delta": float("nan")}, "delta nan"),
        ({"name": "lantern++", "k": 3, "lam": 0.9}, "lambda 0.9"),
        ({"name": "lantern++", "k": 3, "lam": float("nan")}, "lambda nan"),
    ],
)
def test_bad_rules(arguments, message):
    with pytest.raises(ValueError, match=message):
        rule_from_name(**arguments)


def test_a_relaxed_rule_needs_its_neighbours():
    codebook = Codebook(neighbours=jnp.zeros((4, 2), jnp.int32), codes=jnp.zeros((4, 3)))
    check_codebook(Strict(), None)
    check_codebook(rule_from_name("lantern", 2), codebook)
    with pytest.raises(ValueError, match="needs a codebook"):
        check_codebook(rule_from_name("lantern", 2), None)
    with pytest.raises(ValueError, match="the table stores 2"):
        check_codebook(rule_from_name("lantern", 3), codebook)


def test_neighbours_are_sliced_and_distances_euclidean():
    codebook = Codebook(
        neighbours=jnp.asarray([[1, 2], [0, 2], [1, -1]], jnp.int32),
        codes=jnp.asarray([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]),
    )
    tokens = jnp.asarray([2, 0], jnp.int32)
    np.testing.assert_array_equal(
        token_neighbours(codebook, tokens, rule_from_name("lantern", 1)), [[1], [1]]
    )
    np.testing.assert_allclose(code_distance(codebook, tokens, jnp.asarray([2, 1], jnp.int32)), [0, 5])
