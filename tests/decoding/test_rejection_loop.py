"""Strict rejection decoding follows the exact distribution of an enumerable model, whatever the drafter."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import speculative_decode
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys
from .enumerated_chain import LENGTH, SAMPLES, VOCAB, agreement, exact_distribution

TREES = {
    "chain": DraftTree.chain(3),
    "wide": DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]),
}
# One forced token, and two in a row; the last position is forced too.
FORCED = {"one": (-1, -1, 2, -1, -1), "two": (-1, 1, 0, -1, -1), "end": (-1, -1, -1, -1, 1)}


def decode(tree, quality, coupling, forced=None, samples=SAMPLES, **sampling):
    target, params = toys.markov_target(VOCAB, LENGTH, forced), toys.markov_params(VOCAB)
    conditioning = jnp.zeros((samples, 1))
    return speculative_decode(
        target, params, conditioning, toys.sequence_keys(5, samples),
        drafting=eagle(toys.noisy_drafter(target), TREES[tree]),
        drafting_params=toys.noisy_params(params, conditioning, quality), coupling=coupling,
        sampling=SamplingParams.create(**sampling),
    )  # fmt: skip


@pytest.mark.parametrize("coupling", ["rejection", "gumbel"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("quality", [0.3, 5.0], ids=["good", "bad"])
def test_strict_decoding_follows_the_exact_distribution(tree, quality, coupling):
    decoded = decode(tree, quality, coupling)
    assert agreement(decoded.tokens, exact_distribution(toys.markov_params(VOCAB))) > 1e-3
    assert int(decoded.accepted[:, 1:].sum()) > 0


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
    decoded = decode(tree, 0.3, coupling, FORCED[forced])
    expected = exact_distribution(toys.markov_params(VOCAB), FORCED[forced])
    assert agreement(decoded.tokens, expected) > 1e-3
    assert int(decoded.accepted[:, 1:].sum()) > 0


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
    """What the filters leave is so few sequences that fewer samples are needed."""
    params, sampling = toys.markov_params(VOCAB), SAMPLING[name]
    decoded = decode("wide", 0.3, coupling, samples=SAMPLES // 2, **sampling)
    expected = exact_distribution(params, **sampling)
    assert (expected == 0).sum() > 100, "the filters filter nothing"
    assert agreement(decoded.tokens, expected) > 1e-3
    assert int(decoded.accepted[:, 1:].sum()) > 0


def test_another_distribution_would_be_found():
    """The law of the chain without its filter, and that of another chain."""
    decoded = decode("wide", 0.3, "rejection")
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


# By default in test_rules_loop.py, with a relaxed rule.
@pytest.mark.parametrize(
    "forced",
    [
        pytest.param(None, id="free", marks=pytest.mark.exhaustive),
        pytest.param((-1, -1, -1, 4, 5, -1, -1, 2, -1, -1, 7, -1), id="forced", marks=pytest.mark.exhaustive),
    ],
)
def test_rejection_on_several_devices_is_rejection_on_one(forced):
    vocab, batch = 10, 16
    target, params = toys.markov_target(vocab, 12, forced), toys.markov_params(vocab)
    conditioning = jnp.zeros((batch, 1))

    def run(**options):
        return speculative_decode(
            target, params, conditioning, toys.sequence_keys(1, batch), coupling="rejection",
            drafting=eagle(toys.noisy_drafter(target), TREES["chain"]),
            drafting_params=toys.noisy_params(params, conditioning, 0.5),
            sampling=SamplingParams.create(0.9, 7, 0.95), **options,
        )  # fmt: skip

    alone, spread = run(), run(mesh=jax.make_mesh((8,), ("data",)))
    jax.tree.map(np.testing.assert_array_equal, spread, alone)
    assert len(np.unique(alone.rounds)) > 1 and int(alone.accepted[:, 1:].sum()) > 0
