"""A window led by a drafter: fewer passes than either alone, and what is refused; its tokens: test_equality.py."""

import pytest

from lantern_jax.decoding.drafting.eagle import eagle
from lantern_jax.decoding.drafting.jacobi import Window, drafting_of
from lantern_jax.decoding.drafting.led import led_window
from lantern_jax.decoding.tree import DraftTree

from . import toy_models as toys

CHAIN = DraftTree.chain(6)
WINDOW = Window(toys.VOCAB, CHAIN)


def test_it_takes_fewer_passes_than_either_alone():
    drafter = toys.copy_drafter()
    led, eagles, window = (
        int(toys.decode(drafting, noise=noise).rounds.sum())
        for drafting, noise in (
            (led_window(drafter, WINDOW, 3), 0.6), (eagle(drafter, CHAIN), 0.6), (drafting_of(WINDOW), None),
        )
    )  # fmt: skip
    assert led < 0.97 * min(eagles, window), (led, eagles, window)


def test_what_does_not_fit_is_refused():
    drafter = toys.copy_drafter()
    with pytest.raises(ValueError, match="a led window needs the coupling gumbel"):
        led_window(drafter, Window(toys.VOCAB, CHAIN, "maximal"))
    with pytest.raises(ValueError, match="reach 0 is not valid"):
        led_window(drafter, WINDOW, 0)
