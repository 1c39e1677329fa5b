"""A user's own rule and drafting from public parts; the drafting's exactness is tested in test_equality.py as "own"."""

from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import Draft, Drafting, DraftTree
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams, gumbel_noise
from lantern_jax.rules import Rule
from tests.cases import exhaustive

from . import toy_models as toys
from .ways import bigram

VOCAB, LENGTH, BATCH = 16, 21, 64


@flax.struct.dataclass
class Hamming(Rule):
    """Accepts a token whose number differs from the wanted one's in at most ``most`` binary digits."""

    most: jax.Array

    def accepts(self, p, token, wanted, depth, codebook):
        """Accepts as ``Rule.accepts`` says, but never a token that the target rules out."""
        return (digits_apart(token, wanted) <= self.most) & (p.at(token) > 0)


def digits_apart(left, right):
    return jax.lax.population_count(left ^ right)


def decode(most, temperature, **more):
    return speculative_decode(
        toys.markov_target(VOCAB, LENGTH), toys.markov_params(VOCAB), jnp.zeros((BATCH, 1)),
        toys.sequence_keys(2, BATCH), drafting=bigram(toys.BUSHY, VOCAB), rule=Hamming(jnp.int32(most)),
        sampling=SamplingParams.create(temperature), **more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "devices"), [exhaustive(0.0, 1), (1.0, 8)])
def test_a_distance_rule_substitutes_near_tokens_and_saves_rounds(temperature, devices):
    """Every token is within the distance of what the target wanted there, in the context that was decoded."""
    options = {"mesh": jax.make_mesh((8,), ("data",))} if devices > 1 else {}
    strict, near = (decode(most, temperature, **options) for most in (0, 1))
    assert int(strict.substituted.sum()) == 0
    for decoded, most in ((strict, 0), (near, 1)):
        wanted = wanted_tokens(decoded.tokens, temperature)
        apart = np.asarray(digits_apart(np.asarray(decoded.tokens), wanted))
        assert apart.max() == most
        np.testing.assert_array_equal((apart > 0).sum(axis=1), decoded.substituted)
    if temperature:
        assert int(near.rounds.sum()) < int(strict.rounds.sum()) < BATCH * (LENGTH - 1)


def wanted_tokens(tokens, temperature):
    """Returns plain decoding's token at every place after the tokens before it."""
    before = np.concatenate([np.full((BATCH, 1), VOCAB), np.asarray(tokens)[:, :-1]], axis=1)
    scores = np.asarray(jax.nn.log_softmax(toys.markov_params(VOCAB), axis=-1))[before]
    if temperature:
        places = jnp.tile(jnp.arange(LENGTH, dtype=jnp.int32)[None], (BATCH, 1))
        scores = scores + jax.jit(partial(gumbel_noise, vocab_size=VOCAB))(
            toys.sequence_keys(2, BATCH), places
        )
    return np.argmax(scores, axis=-1).astype(np.int32)


# Forced tokens that are not codes: two rows of four codes and a row end, then one of two codes and two row ends.
RAGGED = (-1, -1, -1, -1, 3, -1, -1, -1, -1, 3, -1, -1, 3, 3)


def stubborn(params, state, pending, draws, sampling):
    """Guesses the last token plus the parameters, whether that is a code or not."""
    root = pending.tokens[:, -1:]
    return Draft(jnp.concatenate([root, root + params, root + params], axis=1), DraftTree.chain(2)), state


STUBBORN = Drafting(lambda *given: (), stubborn, lambda params, state, outcome: state, 2)


@pytest.mark.parametrize("coupling", ["gumbel", exhaustive("rejection")])
def test_guesses_that_are_no_codes_are_never_written(coupling):
    # After a row end every code is equally likely to be wanted, the last one too.
    target, params = toys.markov_target(3, len(RAGGED), RAGGED), toys.markov_params(3).at[3].set(0)
    given = (target, params, jnp.zeros((BATCH, 1)), toys.sequence_keys(1, BATCH))
    decode = partial(speculative_decode, *given, drafting=STUBBORN, coupling=coupling)
    for more in (0, 7, -9):
        tokens = np.asarray(decode(drafting_params=jnp.int32(more)).tokens)
        np.testing.assert_array_equal(tokens >= 3, (target.forced >= 3)[None].repeat(BATCH, 0))
        assert tokens.min() >= 0
        if coupling == "gumbel":
            np.testing.assert_array_equal(tokens, autoregressive_decode(*given).tokens)
