"""Given first tokens are kept, and any drafting continues them as plain decoding does."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import DraftTree
from lantern_jax.decoding import completion
from lantern_jax.decoding.completion import Completion
from lantern_jax.decoding.drafting.plain import PLAIN
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams, sample
from lantern_jax.draftings import Echo, Rows, eagle, jacobi
from lantern_jax.families.llamagen.model import LlamaGen
from tests.cases import exhaustive, slow

from . import toy_models as toys

BATCH, TOTAL, SEED, OTHER = 3, toys.CONFIG.num_tokens, 0, 1
TREE = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 0, 0)])


def decode(drafting, params=None, given=None, batch=BATCH, seed=SEED, **more):
    conditioning = toys.conditioning(batch)
    if given is not None:
        conditioning = Completion(conditioning, jnp.asarray(given[:batch]))
    return speculative_decode(
        toys.llamagen(), toys.target_params(), conditioning, toys.sequence_keys(seed, batch), drafting=drafting,
        drafting_params=params, **more,
    )  # fmt: skip


@cache
def plain(seed: int) -> np.ndarray:
    return np.asarray(decode(PLAIN, seed=seed).tokens)


@cache
def continued(count: int) -> np.ndarray:
    """Continues another seed's first tokens one by one from the whole model's logits, without cache or loop."""

    @jax.jit
    def sampled(params, tokens, keys, place):
        logits = LlamaGen(toys.CONFIG).apply(params, toys.conditioning(BATCH), tokens)[1][:, place]
        return sample(logits, keys, jnp.full(BATCH, place), SamplingParams.create())

    tokens, keys = plain(OTHER).copy(), toys.sequence_keys(SEED, BATCH)
    for place in range(count, TOTAL):
        tokens[:, place] = sampled(toys.target_params(), tokens, keys, place)
    return tokens


def draftings() -> dict:
    copy = toys.noisy_params(toys.target_params(), toys.conditioning(BATCH), 0.2)
    return {
        "plain": (PLAIN, None),
        "copy": (eagle(toys.noisy_drafter(toys.llamagen()), TREE), copy),
        "jacobi": (jacobi(toys.VOCAB, 4), None),
    }


@pytest.mark.parametrize("name", [exhaustive("plain"), slow("copy"), "jacobi"])
def test_the_rest_is_plain_decodings_continuation(name, monkeypatch):
    # Two whole pieces and a shorter one.
    monkeypatch.setattr(completion, "PIECE", 5)
    count, (drafting, params) = 13, draftings()[name]
    expected = continued(count)
    decoded = decode(drafting, params, expected[:, :count])
    np.testing.assert_array_equal(decoded.tokens, expected)
    assert (expected[:, :count] == plain(OTHER)[:, :count]).all() and (expected != plain(SEED)).any()
    # Given tokens cost no round; the rest is counted.
    rounds, accepted = np.asarray(decoded.rounds), np.asarray(decoded.accepted)
    assert (np.asarray(decoded.round_of_token)[:, :count] == 0).all()
    np.testing.assert_array_equal(accepted @ (1 + np.arange(accepted.shape[1])), TOTAL - count)
    np.testing.assert_array_equal(np.asarray(decoded.round_of_token)[:, -1], rounds)
    assert (rounds < TOTAL - count).any() or name == "plain"


@pytest.mark.parametrize("count", [exhaustive(1), slow(TOTAL - 1)])
def test_one_token_or_all_but_one_may_be_given(count):
    drafting, params = draftings()["copy"]
    decoded = decode(drafting, params, plain(SEED)[:, :count])
    np.testing.assert_array_equal(decoded.tokens, plain(SEED))
    assert count < TOTAL - 1 or decoded.rounds.tolist() == [1] * BATCH


@pytest.mark.slow
def test_a_completion_resumes_the_drafting_where_it_stood():
    """Resumed between two rounds, a picture continues with the very same rounds: no state of the drafting is lost."""
    drafting, _ = draftings()["copy"]
    params = toys.noisy_params(toys.target_params(), toys.conditioning(1), 0.7)
    whole = decode(drafting, params, batch=1)
    rounds = np.asarray(whole.round_of_token)[0]
    assert 8 < rounds[-1] < TOTAL - 2, "rounds are all alike"
    count = int(np.argmax(rounds == 6))
    again = decode(drafting, params, np.asarray(whole.tokens)[:, :count], batch=1)
    np.testing.assert_array_equal(again.tokens, whole.tokens)
    after = np.asarray(again.round_of_token)[0, count:]
    np.testing.assert_array_equal(after, rounds[count:] - rounds[count] + 1)


# The given tokens end in the middle of a round's draft of three.
CUT = 12


@pytest.mark.slow
def test_echo_recalls_nothing_of_given_tokens():
    """What the target says after the last of them is not known, so a drafter that is always right stays right."""
    drafting = eagle(toys.noisy_drafter(toys.llamagen()), DraftTree.chain(3), Echo())
    params = toys.noisy_params(toys.target_params(), toys.conditioning(BATCH), 0.0)
    decoded = decode(drafting, params, plain(OTHER)[:, :CUT])
    assert (np.asarray(decoded.round_of_token)[:, CUT : CUT + 4] == 1).all()


@pytest.mark.parametrize("count", [3, exhaustive(9)])
def test_tokens_may_be_given_across_row_ends(count):
    """Rows of four codes and a forced end: in the first row nothing is pending yet, later a row end is."""
    target, params, conditioning = toys.stream("chain", 4)
    other = np.random.default_rng(OTHER).integers(0, target.vocab_size, (4, count), np.int32)
    assert target.forced[count - 1] < 0 and (target.forced[:count] >= 0).any() == (count > 4)
    other = np.where(target.forced[:count] < 0, other, target.forced[:count])
    given, keys = Completion(conditioning, jnp.asarray(other)), toys.sequence_keys(SEED, 4)
    decoded = speculative_decode(
        target, params, given, keys, drafting=eagle(toys.copy_drafter("chain"), DraftTree.chain(2)),
        drafting_params=toys.noisy_params(params, conditioning, 0.7),
    )  # fmt: skip
    expected = autoregressive_decode(target, params, given, keys)
    np.testing.assert_array_equal(decoded.tokens, expected.tokens)
    np.testing.assert_array_equal(decoded.tokens[:, :count], other)


@pytest.mark.parametrize(("given", "rows", "message"), [
    (np.zeros((BATCH, TOTAL), np.int32), None, f"K from 1 to {TOTAL - 1}"),
    (np.zeros((BATCH, 0), np.int32), None, f"K from 1 to {TOTAL - 1}"),
    (np.zeros((BATCH, 5), np.int32), Rows(5, 2), "zipar"),
])  # fmt: skip
def test_tokens_that_cannot_be_given_are_refused(given, rows, message):
    with pytest.raises(ValueError, match=message):
        decode(PLAIN, None, given, rows=rows)
