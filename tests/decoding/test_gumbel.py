"""The noise that a loop keeps is the noise that rounds would draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import SamplingParams
from lantern_jax.couplings import Gumbel
from lantern_jax.decoding.gumbel import noise_at

LENGTH, LEVELS, VOCAB = 20, 5, 96


@pytest.mark.parametrize("positions", [[7], [0, 12, LENGTH]])
def test_kept_noise_is_that_of_each_round(positions):
    keys, positions = jax.random.split(jax.random.key(3), len(positions)), jnp.array(positions, jnp.int32)
    kept = Gumbel().noise_of(keys, LENGTH, LEVELS, VOCAB, SamplingParams.create())
    drawn = Gumbel().draws(keys, positions, positions, LEVELS, VOCAB, SamplingParams.create())
    np.testing.assert_array_equal(noise_at(kept, positions, LEVELS).noise, drawn.noise)


@pytest.mark.parametrize(
    ("levels", "vocab_size", "temperature"), [(1, VOCAB, 1.0), (LEVELS, 2**20, 1.0), (LEVELS, VOCAB, 0.0)]
)
def test_no_noise_is_kept_for_plain_decoding_large_vocabularies_or_temperature_0(
    levels, vocab_size, temperature
):
    keys, sampling = jax.random.split(jax.random.key(3), 1), SamplingParams.create(temperature)
    assert Gumbel().noise_of(keys, LENGTH, levels, vocab_size, sampling) is None
