"""Strict rejection decoding follows the exact distribution of an enumerable model, whatever the drafter."""

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


def decode(tree, quality, coupling, forced=None, **sampling):
    target, params = toys.markov_target(VOCAB, LENGTH, forced), toys.markov_params(VOCAB)
    conditioning = jnp.zeros((SAMPLES, 1))
    return speculative_decode(
        target, params, conditioning, toys.sequence_keys(5, SAMPLES),
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


@pytest.mark.parametrize("coupling", ["rejection", "gumbel"])
@pytest.mark.parametrize("forced", FORCED)
@pytest.mark.parametrize("tree", TREES)
def test_forced_tokens_leave_the_rest_its_distribution(tree, forced, coupling):
    decoded = decode(tree, 0.3, coupling, FORCED[forced])
    expected = exact_distribution(toys.markov_params(VOCAB), FORCED[forced])
    assert agreement(decoded.tokens, expected) > 1e-3
    assert int(decoded.accepted[:, 1:].sum()) > 0


@pytest.mark.parametrize("coupling", ["rejection", "gumbel"])
@pytest.mark.parametrize(
    "sampling", [{"top_k": 2}, {"top_p": 0.7}, {"temperature": 0.8, "top_k": 2, "top_p": 0.8}], ids=str
)
def test_filters_give_the_filtered_distribution(sampling, coupling):
    params = toys.markov_params(VOCAB)
    decoded, expected = decode("wide", 0.3, coupling, **sampling), exact_distribution(params, **sampling)
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
    batch = 4
    target, params = toys.llamagen(), toys.target_params()
    conditioning = toys.conditioning(batch)
    common = {"guidance": jnp.full(batch, 2.0), "sampling": SamplingParams.create(0.0)}
    drafting = eagle(toys.noisy_drafter(target), "mc_sim_7b_63")

    def run(drafting, coupling):
        return speculative_decode(
            target, params, conditioning, toys.sequence_keys(0, batch), drafting=drafting,
            drafting_params=toys.noisy_params(params, conditioning, 0.6), coupling=coupling, **common,
        )  # fmt: skip

    plain, rejection, gumbel = run(PLAIN, "gumbel"), run(drafting, "rejection"), run(drafting, "gumbel")
    np.testing.assert_array_equal(rejection.tokens, plain.tokens)
    np.testing.assert_array_equal(rejection.rounds, gumbel.rounds)


@pytest.mark.parametrize(
    "forced", [None, (-1, -1, -1, 4, 5, -1, -1, 2, -1, -1, 7, -1)], ids=["free", "forced"]
)
def test_rejection_on_several_devices_is_rejection_on_one(forced):
    vocab, batch = 10, 16
    target, params = toys.markov_target(vocab, 12, forced), toys.markov_params(vocab)
    conditioning = jnp.zeros((batch, 1))

    def run(**options):
        return speculative_decode(
            target, params, conditioning, toys.sequence_keys(1, batch), coupling="rejection",
            drafting=eagle(toys.noisy_drafter(target), TREES["wide"]),
            drafting_params=toys.noisy_params(params, conditioning, 0.5),
            sampling=SamplingParams.create(0.9, 7, 0.95), **options,
        )  # fmt: skip

    alone, spread = run(), run(mesh=jax.make_mesh((8,), ("data",)))
    jax.tree.map(np.testing.assert_array_equal, spread, alone)
    assert len(np.unique(alone.rounds)) > 1 and int(alone.accepted[:, 1:].sum()) > 0
