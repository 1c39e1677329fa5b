"""Echo: what is remembered and how it is mixed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.echo import Echo, Memory, blended, mixed

VOCAB = 6


def slow_mix(echo, memory, log_q, token, before, position):
    """Mixes one node by a plain reading of the module's docstring."""
    old = [
        (int(memory.tokens[n]) == token, int(memory.before[n]) == before, memory.log_probs[n])
        for n in range(len(memory.tokens))
        if int(memory.positions[n]) == position
    ]
    tiers = (
        (echo.parent, [p for same, parent, p in old if same and parent]),
        (echo.token, [p for same, _, p in old if same]),
        (echo.position, [p for _, _, p in old]),
    )
    for (a, b), found in tiers:
        if found:
            scores = a * log_q + b * np.mean(np.maximum(found, -20.0), axis=0)
            return scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
    return log_q


def test_old_nodes_are_mixed_in_by_how_well_they_match():
    rng, nodes = np.random.default_rng(1), 12
    memory = Memory(
        *(rng.integers(3, size=(1, nodes)).astype(np.int32) for _ in range(2)),
        rng.integers(4, 7, size=(1, nodes)).astype(np.int32),
        np.array(jax.nn.log_softmax(rng.normal(size=(1, nodes, VOCAB)).astype(np.float32))),
    )
    memory.log_probs[0, :, 2] = -np.inf
    log_q = np.array(jax.nn.log_softmax(rng.normal(size=(1, 36, VOCAB)).astype(np.float32)))
    tokens, before = np.repeat(np.arange(4), 9)[None], np.tile(np.arange(9) % 3, 4)[None]
    echo, seen = Echo((0.8, 0.25), (0.3, 0.8), (0.1, 0.7)), set()
    mix = jax.jit(partial(mixed, echo))
    for position in range(3, 8):
        made = mix(memory, *map(jnp.asarray, (log_q, tokens, before)), jnp.full(1, position))
        for row in range(36):
            single = jax.tree.map(lambda field: field[0], memory)
            wanted = slow_mix(echo, single, log_q[0, row], tokens[0, row], before[0, row], position)
            np.testing.assert_allclose(made[0, row], wanted, atol=2e-5)
            seen.add(bool(np.allclose(wanted, log_q[0, row])))
    assert seen == {True, False}


def test_shares_of_zero_and_filtered_codes_make_no_nan():
    """0 times -inf: what has no share in the mixture rules nothing out."""
    log_q = jax.nn.log_softmax(jnp.array([[0.0, -jnp.inf, 1.0, -jnp.inf]]))
    old = jax.nn.log_softmax(jnp.array([[-jnp.inf, 2.0, 1.0, -jnp.inf]]))
    for a, b in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.5, 0.5)):
        for agreement in (0, 1, 2, 3):
            echo = Echo((a, b), (a, b), (a, b))
            made = np.asarray(blended(echo, log_q, old, jnp.array([agreement])))
            assert not np.isnan(made).any()
            np.testing.assert_allclose(np.exp(made).sum(axis=-1), 1, atol=1e-5)
    target = np.asarray(blended(Echo((0, 1), (0, 1), (0, 1)), log_q, old, jnp.array([2])))
    np.testing.assert_allclose(target, jax.nn.log_softmax(jnp.maximum(old, -20.0)), atol=1e-6)


@pytest.mark.parametrize("share", [np.nan, -0.1, np.inf, "much"])
def test_shares_that_are_no_numbers_are_refused(share):
    with pytest.raises(ValueError, match="token of echo is not valid: give two finite numbers >= 0"):
        Echo(token=(0.5, share))
    with pytest.raises(ValueError, match="give two finite numbers"):
        Echo(token=(0.5,))
