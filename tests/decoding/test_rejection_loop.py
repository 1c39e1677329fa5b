"""Strict rejection decoding follows the exact distribution of an enumerable model with any drafter."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys
from .enumerated_chain import (
    SAMPLES,
    VOCAB,
    agreement,
    assert_exact,
    copy_of_target,
    decode,
    exact_distribution,
)

TREES = {
    "chain": DraftTree.chain(3),
    "wide": toys.BUSHY,
}
# One forced token, and two in a row; the last position is forced too.
FORCED = {"one": (-1, -1, 2, -1, -1), "two": (-1, 1, 0, -1, -1), "end": (-1, -1, -1, -1, 1)}


def drafting(tree, forced=None):
    return eagle(copy_of_target(forced), TREES[tree])


@pytest.mark.parametrize("coupling", ["rejection", "gumbel"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("quality", [0.3, 5.0], ids=["good", "bad"])
def test_strict_decoding_follows_the_exact_distribution(tree, quality, coupling):
    assert_exact(drafting(tree), quality, coupling)


# On the shared noise the tokens are plain decoding's whatever is drafted (test_loop.py): one case does.
AMONG_FORCED = (
    ("chain", "one", "rejection"),
    ("wide", "two", "rejection"),
    ("chain", "end", "rejection"),
    ("wide", "one", "gumbel"),
)


@pytest.mark.parametrize(
    ("tree", "forced", "coupling"),
    [
        pytest.param(*case, marks=() if case in AMONG_FORCED else pytest.mark.exhaustive)
        for case in itertools.product(TREES, FORCED, ["rejection", "gumbel"])
    ],
)
def test_forced_tokens_leave_the_rest_its_distribution(tree, forced, coupling):
    assert_exact(drafting(tree, FORCED[forced]), 0.3, coupling, forced=FORCED[forced])


SAMPLING = {
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "all": {"temperature": 0.8, "top_k": 2, "top_p": 0.8},
}


@pytest.mark.parametrize(
    ("name", "coupling"),
    [
        pytest.param(
            *case, marks=() if case in (("all", "rejection"), ("top_k", "gumbel")) else pytest.mark.exhaustive
        )
        for case in itertools.product(SAMPLING, ["rejection", "gumbel"])
    ],
)
def test_filters_give_the_filtered_distribution(name, coupling):
    """The filters leave few sequences, so that fewer samples do."""
    expected = exact_distribution(toys.markov_params(VOCAB), **SAMPLING[name])
    assert (expected == 0).sum() > 100, "the filters filter nothing"
    assert_exact(drafting("wide"), 0.3, coupling, samples=SAMPLES // 2, **SAMPLING[name])


def test_another_distribution_would_be_found():
    """The law of the chain without its filter, and that of another chain."""
    decoded = decode(drafting("wide"), 0.3)
    params = toys.markov_params(VOCAB)
    assert agreement(decoded.tokens, exact_distribution(params, top_k=2)) < 1e-9
    assert agreement(decoded.tokens, exact_distribution(params, temperature=1.1)) < 1e-3


def test_rejection_at_temperature_zero_is_greedy():
    batch = 8
    target, params = toys.markov_target(10, 21), toys.markov_params(10)
    conditioning = jnp.zeros((batch, 1))
    common = {"guidance": jnp.full(batch, 2.0), "sampling": SamplingParams.create(0.0)}
    drafting = eagle(toys.noisy_drafter(target), TREES["wide"])

    def run(drafting, coupling):
        return speculative_decode(
            target, params, conditioning, toys.sequence_keys(0, batch), drafting=drafting,
            drafting_params=toys.noisy_params(params, conditioning, 0.6), coupling=coupling, **common,
        )  # fmt: skip

    plain, rejection, gumbel = run(PLAIN, "gumbel"), run(drafting, "rejection"), run(drafting, "gumbel")
    np.testing.assert_array_equal(rejection.tokens, plain.tokens)
    np.testing.assert_array_equal(rejection.rounds, gumbel.rounds)
