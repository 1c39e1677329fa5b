"""Forced tokens that are no codes, as Lumina-mGPT's row ends: drafts go on behind them and the tokens stay right."""

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.jacobi import jacobi, speculative_jacobi
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.protocols import Draft, Drafting
from lantern_jax.decoding.sampling import SamplingParams
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

BATCH = 8
# Rows of four codes and a row end, of two and two.
RAGGED = (-1, -1, -1, -1, 3, -1, -1, -1, -1, 3, -1, -1, 3, 3)
WINDOWS = {"gumbel": jacobi(12, 6), "rejection": speculative_jacobi(12, 6)}


@pytest.mark.parametrize("window", [1, 6])
def test_a_copied_row_end_is_no_guess(window):
    """Repeated to a free place it was compared as the last code and written as itself."""
    # After a row end each code is as likely wanted, the last one too.
    target, params = toys.markov_target(3, 14, RAGGED), toys.markov_params(3).at[3].set(0)
    given = (target, params, jnp.zeros((64, 1)), toys.sequence_keys(1, 64))
    plain = autoregressive_decode(*given)
    decoded = speculative_decode(*given, drafting=jacobi(3, window, "repeat"))
    np.testing.assert_array_equal(decoded.tokens, plain.tokens)
    sampled = speculative_decode(
        *given, drafting=speculative_jacobi(3, window, "maximal", "repeat"), coupling="rejection"
    )
    for tokens in (decoded.tokens, sampled.tokens):
        np.testing.assert_array_equal(np.asarray(tokens) >= 3, (target.forced >= 3)[None].repeat(64, 0))


@pytest.mark.parametrize("coupling", ["gumbel", "rejection"])
def test_guesses_of_ones_own_that_are_no_codes_are_never_written(coupling):
    tree = DraftTree.chain(2)

    def propose(params, state, pending, draws, sampling):
        root = pending.tokens[:, -1:]
        return Draft(jnp.concatenate([root, root + params, root + params], axis=1), tree), state

    stubborn = Drafting(lambda *given: (), propose, lambda params, state, outcome: state, tree.max_depth)
    target, params = toys.markov_target(3, 14, RAGGED), toys.markov_params(3)
    given = (target, params, jnp.zeros((64, 1)), toys.sequence_keys(1, 64))
    plain = autoregressive_decode(*given)
    for more in (0, 7, -9):
        decoded = speculative_decode(
            *given, drafting=stubborn, drafting_params=jnp.int32(more), coupling=coupling
        )
        np.testing.assert_array_equal(
            np.asarray(decoded.tokens) >= 3, (target.forced >= 3)[None].repeat(64, 0)
        )
        assert int(jnp.min(decoded.tokens)) >= 0
        if coupling == "gumbel":
            np.testing.assert_array_equal(decoded.tokens, plain.tokens)


@pytest.mark.parametrize(
    ("coupling", "temperature"),
    [
        ("gumbel", 1.0),
        ("rejection", 1.0),
        pytest.param("gumbel", 0.0, marks=pytest.mark.exhaustive),
        pytest.param("rejection", 0.0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_window_reaches_over_row_ends(coupling, temperature):
    target, params, conditioning = toys.lumina(BATCH)
    arguments = (target, params, conditioning, toys.sequence_keys(1, BATCH))
    common = {"guidance": jnp.full(BATCH, 2.0), "sampling": SamplingParams.create(temperature)}
    plain = autoregressive_decode(*arguments, **common)
    decoded = speculative_decode(*arguments, drafting=WINDOWS[coupling], coupling=coupling, **common)
    assert decoded.finite.all() and int(decoded.substituted.sum()) == 0
    assert (decoded.rounds < plain.rounds).all()
    ends = target.forced >= target.vocab_size
    assert ends.sum() == 5
    np.testing.assert_array_equal(decoded.tokens[:, ends], plain.tokens[:, ends])
    codes = np.asarray(decoded.tokens)[:, ~ends]
    assert codes.min() >= 0 and codes.max() < target.vocab_size
    if coupling == "gumbel" or not temperature:
        np.testing.assert_array_equal(decoded.tokens, plain.tokens)
    # Some round commits codes of two rows, with the row end between them.
    rounds = np.asarray(decoded.round_of_token)
    before = np.flatnonzero(ends[:-2])
    assert (rounds[:, before - 1] == rounds[:, before + 1]).any()
