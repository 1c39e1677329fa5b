"""Grids, pictures side by side and the acceptance overlay."""

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.display import acceptance
from lantern_jax.pictures import images as pictures

# A 4x4 grid of tokens: prefill, then rounds of 4, 1, 3 and 7 tokens.
ROUNDS = np.repeat([0, 1, 2, 3, 4], [1, 4, 1, 3, 7]).astype(np.int32)


def plain(value, height=8, width=8):
    return np.full((height, width, 3), value, np.uint8)


def test_grid_places_pictures_row_by_row():
    made = pictures.grid(np.stack([plain(value) for value in (10, 20, 30)]), gap=2)
    assert made.shape == (18, 18, 3)
    assert (made[:8, :8] == 10).all()
    assert (made[:8, 10:] == 20).all()
    assert (made[10:, :8] == 30).all()
    assert len(np.unique(made[10:, 10:])) == 1, "the empty place is background"
    assert pictures.grid([plain(value) for value in (10, 20, 30)], columns=3, gap=0).shape == (8, 24, 3)


@pytest.mark.parametrize(("shape", "columns"), [((0, 8, 8, 3), None), ((2, 8, 8), None), ((2, 8, 8, 3), 0)])
def test_grid_refuses_wrong_shapes_and_no_columns(shape, columns):
    with pytest.raises(ValueError, match="give at least"):
        pictures.grid(np.zeros(shape, np.uint8), columns)


def test_side_by_side_keeps_the_pictures():
    made = pictures.side_by_side([plain(10, 8, 64), plain(20, 6, 64)], ["plain", "speculative"], gap=2)
    assert made.shape[1] == 130 and made.shape[0] > 8
    assert (made[:8, :64] == 10).all()
    assert (made[:6, 66:] == 20).all()
    assert (made[8:, :64] > 100).any(), "the caption is drawn"
    assert pictures.side_by_side([plain(10), plain(20)]).shape == (8, 20, 3)
    with pytest.raises(ValueError, match="1 captions for 2 pictures"):
        pictures.side_by_side([plain(1), plain(2)], ["one"])


def test_16_bits_of_grey_keep_their_upper_half():
    sent = Image.fromarray(np.full((8, 6), 200 * 256 + 99, np.uint16))
    assert sent.mode == "I;16" and (pictures.fitted(sent, 4, 4) == 200).all()


def test_overlay_tints_cells_by_accepted_count():
    drawn = acceptance.draw_over(plain(128, 16, 16), ROUNDS, 6)
    cell = drawn.shape[1] // 4
    assert drawn.shape[0] > 4 * cell, "the legend is below"
    centres = drawn[cell // 2 : 4 * cell : cell, cell // 2 : 4 * cell : cell].reshape(16, 3).astype(int)
    # The bonus token of a round is not one that it accepted.
    counts = acceptance.accepted_by_round(ROUNDS)
    np.testing.assert_array_equal(counts, np.repeat([0, 3, 0, 2, 6], [1, 4, 1, 3, 7]))
    for left in range(16):
        for right in range(16):
            assert (centres[left] == centres[right]).all() == (counts[left] == counts[right])
    # Many accepted tokens are brighter than none.
    assert centres[15].sum() > centres[0].sum()
    # Between tokens of one round there is no line; between rounds there is.
    assert (drawn[cell // 2, 2 * cell] == centres[1]).all()
    assert (drawn[cell // 2, cell] == 0).all()
