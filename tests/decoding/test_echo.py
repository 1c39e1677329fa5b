"""Echo: what is remembered, which old node is recalled, and how it is mixed in."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Draft, DraftTree
from lantern_jax.decoding.echo import Echo, Memory, blended, mixed, recalled, remember
from lantern_jax.decoding.gumbel import Greedy, Gumbel
from lantern_jax.decoding.protocols import Outcome, Pending
from lantern_jax.decoding.verification import verify_tree

VOCAB = 6


def slow_recall(memory, history, position):
    """Finds the old node for one node by a plain reading of the docstring: (id or None, agreement)."""
    best = (0, -1, 0)
    for node in range(len(memory.positions)):
        if memory.positions[node] != position:
            continue
        same = memory.history[node] == history
        agreement = 1 + (len(same) if same.all() else int(np.argmin(same)))
        best = max(best, (agreement, int(memory.common[node]), -node))
    return (None if best[0] == 0 else -best[2]), best[0]


def test_old_nodes_are_mixed_in_by_how_long_they_agree():
    rng, nodes = np.random.default_rng(1), 24
    memory = Memory(
        history=rng.integers(2, size=(1, nodes, 3)).astype(np.int32),
        positions=rng.integers(4, 7, size=(1, nodes)).astype(np.int32),
        common=rng.integers(1, 4, size=(1, nodes)).astype(np.int32),
        log_probs=np.array(jax.nn.log_softmax(rng.normal(size=(1, nodes, VOCAB)).astype(np.float32))),
        features=None,
    )
    memory.log_probs[0, :, 2] = -np.inf
    log_q = np.array(jax.nn.log_softmax(rng.normal(size=(1, 27, VOCAB)).astype(np.float32)))
    history = np.stack(np.unravel_index(np.arange(27), (3, 3, 3)), axis=-1).astype(np.int32)[None]
    echo, seen = Echo((0.8, 0.25), (0.3, 0.8), (0.1, 0.7), (0.05, 0.9)), set()
    shares = [(1, 0), echo.position, echo.token, echo.parent, echo.grandparent]
    single = jax.tree.map(lambda field: field[0], memory)
    for position in range(3, 8):
        places = jnp.full((1, 27), position)
        node, agreement = jax.jit(recalled)(memory, history, places)
        made = jax.jit(partial(mixed, echo))(memory, log_q, history, places)
        for row in range(27):
            wanted, level = slow_recall(single, history[0, row], position)
            seen.add(level)
            assert int(agreement[0, row]) == level and wanted in (None, int(node[0, row]))
            a, b = shares[level]
            scores = a * log_q[0, row] + (
                0 if wanted is None else b * np.maximum(single.log_probs[wanted], -20)
            )
            np.testing.assert_allclose(made[0, row], jax.nn.log_softmax(scores), atol=2e-5)
    assert seen == {0, 1, 2, 3, 4}


def test_a_round_is_remembered_with_the_tokens_before_its_nodes():
    """A root 5 after 4 and 3, with nodes 1, 2 below it and 0 below 1; the target takes 1 alone."""
    draft = Draft(jnp.array([[5, 1, 2, 0]]), DraftTree.from_paths([(0,), (1,), (0, 0)]))
    one = jnp.ones(1, jnp.int32)
    pending = Pending(jnp.array([[5]]), one, 7 * one, jnp.array([[5, 4, 3]]))
    log_probs = jax.nn.log_softmax(8 * jax.nn.one_hot(jnp.array([[1, 3, 3, 3]]), VOCAB))
    verdict = jax.jit(partial(verify_tree, coupling=Gumbel()))(draft, log_probs, Greedy())
    features = jnp.arange(4.0)[None, None, :, None]
    outcome = Outcome(
        jnp.array([[5, 1, 1]]), features[:, :, :3], 2 * one, log_probs, features, pending, draft, verdict
    )
    memory = jax.jit(remember)(outcome)
    assert memory.history.tolist() == [[[5, 4, 3], [1, 5, 4], [2, 5, 4], [0, 1, 5]]]
    assert memory.positions.tolist() == [[7, 8, 8, 9]] and memory.common.tolist() == [[1, 2, 1, 2]]
    assert memory.features is None and remember(outcome, with_features=True).features is features


def test_shares_of_zero_and_filtered_codes_make_no_nan():
    """0 times -inf: a part without a share in the mixture rules nothing out."""
    log_q = jax.nn.log_softmax(jnp.array([[0.0, -jnp.inf, 1.0, -jnp.inf]]))
    old = jax.nn.log_softmax(jnp.array([[-jnp.inf, 2.0, 1.0, -jnp.inf]]))
    for a, b in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.5, 0.5)):
        for agreement in range(5):
            echo = Echo(*[(a, b)] * 4)
            made = np.asarray(blended(echo, log_q, old, jnp.array([agreement])))
            assert not np.isnan(made).any()
            np.testing.assert_allclose(np.exp(made).sum(axis=-1), 1, atol=1e-5)
    target = np.asarray(blended(Echo(*[(0, 1)] * 4), log_q, old, jnp.array([2])))
    np.testing.assert_allclose(target, jax.nn.log_softmax(jnp.maximum(old, -20.0)), atol=1e-6)


@pytest.mark.parametrize("share", [np.nan, -0.1, np.inf, "much"])
def test_invalid_shares_are_refused(share):
    with pytest.raises(ValueError, match=r"token of echo .* is not valid: give a finite number >= 0"):
        Echo(token=(0.5, share))
    with pytest.raises(ValueError, match="give two finite numbers"):
        Echo(token=(0.5,))
