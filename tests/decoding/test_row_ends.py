"""Forced tokens that are no codes, as Lumina-mGPT's row ends: drafts go on behind them and the tokens stay right."""

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.jacobi import jacobi, speculative_jacobi
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.sampling import SamplingParams

from . import toy_models as toys

BATCH = 8
WINDOWS = {"gumbel": jacobi(12, 6), "rejection": speculative_jacobi(12, 6)}


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
