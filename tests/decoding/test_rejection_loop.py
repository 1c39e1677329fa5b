"""Strict rejection decoding follows the exact distribution of an enumerable model, whatever the drafter."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree, named_tree

from . import toy_models as toys

VOCAB, LENGTH, SAMPLES = 3, 5, 40_000


def exact_distribution(params):
    probs = np.exp(np.asarray(params, np.float64))
    probs /= probs.sum(axis=-1, keepdims=True)
    sequences = list(itertools.product(range(VOCAB), repeat=LENGTH))
    return np.array([
        probs[VOCAB, s[0]] * np.prod([probs[a, b] for a, b in itertools.pairwise(s)]) for s in sequences
    ])  # fmt: skip


TREES = {
    "chain": DraftTree.chain(3),
    "wide": DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]),
}


@pytest.mark.parametrize("coupling", ["rejection", "gumbel"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("quality", [0.3, 5.0], ids=["good", "bad"])
def test_strict_decoding_follows_the_exact_distribution(tree, quality, coupling):
    target, params = toys.markov_target(VOCAB, LENGTH), toys.markov_params(VOCAB)
    conditioning = jnp.zeros((SAMPLES, 1))
    decoded = speculative_decode(
        target, params, conditioning, toys.sequence_keys(5, SAMPLES), drafter=toys.noisy_drafter(target),
        drafter_params=toys.noisy_params(params, conditioning, quality), tree=TREES[tree], coupling=coupling,
        guidance=None, sampling=SamplingParams.create(1.0),
    )  # fmt: skip
    ids = np.asarray(decoded.tokens) @ (VOCAB ** np.arange(LENGTH)[::-1])
    observed = np.bincount(ids, minlength=VOCAB**LENGTH)
    expected = exact_distribution(params) * SAMPLES
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert int(decoded.accepted[:, 1:].sum()) > 0


def test_rejection_at_temperature_zero_is_greedy():
    batch = 4
    target, params = toys.llamagen(), toys.target_params()
    conditioning = toys.conditioning(batch)
    common = {"guidance": jnp.full(batch, 2.0), "sampling": SamplingParams.create(0.0)}
    tree = named_tree("mc_sim_7b_63")
    drafter, drafter_params = toys.noisy_drafter(target), toys.noisy_params(params, conditioning, 0.6)

    def run(tree, coupling):
        return speculative_decode(
            target, params, conditioning, toys.sequence_keys(0, batch), drafter=drafter,
            drafter_params=drafter_params, tree=tree, coupling=coupling, **common,
        )  # fmt: skip

    plain, rejection, gumbel = run(DraftTree.empty(), "gumbel"), run(tree, "rejection"), run(tree, "gumbel")
    np.testing.assert_array_equal(rejection.tokens, plain.tokens)
    np.testing.assert_array_equal(rejection.rounds, gumbel.rounds)
