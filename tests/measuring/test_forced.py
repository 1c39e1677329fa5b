"""Forced acceptance: the profile's lengths, with the work of verification still done."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Draft, Drafting, SamplingParams, speculative_decode
from lantern_jax.apps.measuring.forced import Forced
from lantern_jax.couplings import Gumbel, Rejection
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.rules import Strict
from tests.decoding import toy_models as toys

STATIC = DraftTree.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 0, 0), (1, 0, 1)])
BATCH, LENGTH = 128, toys.CONFIG.num_tokens
LISTED = (0.35, 0.3, 0.1, 0.25)


def nothing_guessed(tree):
    """Returns a drafting with nothing to compile: its guesses are accepted all the same."""

    def propose(params, state, pending, draws, sampling):
        guesses = jnp.zeros((len(pending.tokens), tree.num_nodes - 1), jnp.int32)
        return Draft(jnp.concatenate([pending.tokens[:, -1:], guesses], axis=1), tree), state

    return Drafting(lambda *_: (), propose, lambda params, state, outcome: state, tree.max_depth)


def expected_counts(chances, left: int) -> np.ndarray:
    """Returns how many rounds accept 0, 1, ... tokens when ``left`` tokens are left, by recursion over what is left."""
    counts = np.zeros((left + 1, len(chances)))
    for n in range(1, left + 1):
        for length, chance in enumerate(chances):
            kept = min(length, n - 1)
            counts[n] += chance * counts[n - kept - 1]
            counts[n, kept] += chance
    return counts[left]


@pytest.mark.slow
def test_lengths_follow_the_profile():
    decoded = speculative_decode(
        toys.llamagen(), toys.target_params(), toys.conditioning(BATCH), toys.sequence_keys(3, BATCH),
        drafting=nothing_guessed(STATIC), drafting_params=None, coupling=Forced(Gumbel(), LISTED),
        guidance=jnp.full(BATCH, 2.0),
    )  # fmt: skip
    assert (np.asarray(decoded.tokens) >= 0).all()
    accepted = np.asarray(decoded.accepted).sum(axis=0)
    expected = BATCH * expected_counts(LISTED, LENGTH - 1)
    # Counts of a picture are correlated, so they scatter less than independent ones would.
    assert np.all(np.abs(accepted - expected) < 4 * np.sqrt(expected + 1)), (accepted, expected)
    assert not np.allclose(expected / expected.sum(), LISTED, atol=0.01), "ends of streams are cut"
    rounds = np.asarray(decoded.rounds)
    assert rounds.sum() == accepted.sum() and (accepted * np.arange(1, 5)).sum() == BATCH * (LENGTH - 1)
    assert len(np.unique(rounds)) > 2, "sequences draw alike"


def verify(coupling, tokens, log_probs, log_q, keys, sampling, tree=STATIC):
    """Returns what the loop needs of a verdict: a compiler may leave out everything else."""
    rows = len(tokens)
    zero = jnp.zeros(rows, jnp.int32)
    draws = coupling.draws(keys, zero, zero, tree.max_depth + 1, log_probs.shape[-1], sampling)
    verdict = coupling.verify(Draft(tokens, tree, log_q), log_probs, draws, Strict(), None, zero + 9)
    return verdict.path, verdict.count


def test_a_shallower_tree_gives_its_deepest_path():
    tree = DraftTree.from_paths([(0,), (1,), (1, 0)])
    tokens, log_probs = jnp.zeros((8, 4), jnp.int32), jnp.full((8, 4, 5), -jnp.log(5.0))
    given = tokens, log_probs, None, toys.sequence_keys(0, 8), SamplingParams.create()
    forced = functools.partial(verify, Forced(Gumbel(), (0, 0, 0, 1.0)), tree=tree)
    path, count = jax.jit(forced)(*given)
    assert count.tolist() == [2] * 8 and path[:, :3].tolist() == [[0, 2, 3]] * 8


class Blind(Forced):
    """Forces lengths without looking: what a compiler could make of an acceptance that depends on nothing."""

    def _lengths(self, verdict, max_count):
        return jnp.broadcast_to(jnp.int32(2), max_count.shape)


@pytest.mark.slow
@pytest.mark.parametrize("coupling", [Gumbel(), Rejection()], ids=["gumbel", "rejection"])
def test_the_compiled_program_verifies(coupling):
    """Seen from the operations that XLA counts, and from the lengths, which another target's verdict changes."""
    rows, codes = 16, 512
    random = np.random.default_rng(0)
    tokens = jnp.asarray(random.integers(0, codes, (rows, STATIC.num_nodes)), jnp.int32)
    log_probs, log_q = (
        jax.nn.log_softmax(jnp.asarray(random.standard_normal((rows, nodes, codes)), jnp.float32))
        for nodes in (STATIC.num_nodes, len(STATIC.internal))
    )
    arguments = tokens, log_probs, log_q, toys.sequence_keys(0, rows), SamplingParams.create()

    def operations(chosen):
        compiled = jax.jit(functools.partial(verify, chosen)).lower(*arguments).compile()
        return compiled.cost_analysis()["flops"], compiled

    real, _ = operations(coupling)
    forced, compiled = operations(Forced(coupling, LISTED))
    blind, _ = operations(Blind(coupling, LISTED))
    assert forced >= real > 4 * blind
    _, counts = compiled(*arguments)
    _, others = compiled(tokens, log_probs[:, ::-1], *arguments[2:])
    assert len(np.unique(counts)) > 2 and not np.array_equal(counts, others)
