"""A window led by a drafter: fewer passes than either alone, and what is refused; its tokens: test_equality.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.jacobi import Window, drafting_of
from lantern_jax.decoding.drafting.led import led_window
from lantern_jax.decoding.loop import autoregressive_decode, speculative_decode
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

CHAIN = DraftTree.chain(6)
WINDOW = Window(toys.VOCAB, CHAIN)
FORCED = tuple(3 if i % 6 == 5 else -1 for i in range(29))


def test_it_takes_fewer_passes_than_either_alone():
    drafter = toys.copy_drafter()
    led, eagles, window = (
        int(toys.decode(drafting, noise=noise).rounds.sum())
        for drafting, noise in (
            (led_window(drafter, WINDOW, 3), 0.6), (eagle(drafter, CHAIN), 0.6), (drafting_of(WINDOW), None),
        )
    )  # fmt: skip
    assert led < 0.97 * min(eagles, window), (led, eagles, window)


def test_it_takes_no_pass_for_forced_tokens():
    batch, vocab, length = 8, 12, len(FORCED)
    target, params = toys.markov_target(vocab, length, FORCED), toys.markov_params(vocab)
    conditioning = jnp.zeros((batch, 1))
    given = target, params, conditioning, toys.sequence_keys(1, batch)
    led = speculative_decode(
        *given, drafting=led_window(toys.noisy_drafter(target), Window(vocab, DraftTree.window(6, 2, 2)), 3),
        drafting_params=toys.noisy_params(params, conditioning, 0.7),
    )  # fmt: skip
    np.testing.assert_array_equal(led.tokens, autoregressive_decode(*given).tokens)
    assert int(led.rounds.max()) < length - 6


def test_what_does_not_fit_is_refused():
    drafter = toys.copy_drafter()
    with pytest.raises(ValueError, match="a led window needs the coupling gumbel"):
        led_window(drafter, Window(toys.VOCAB, CHAIN, "maximal"))
    with pytest.raises(ValueError, match="reach 0 is not valid"):
        led_window(drafter, WINDOW, 0)
