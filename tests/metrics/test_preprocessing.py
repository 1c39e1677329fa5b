"""Pictures prepared for networks, against loops, Pillow and PyTorch."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.metrics import preprocessing

SIZES = [(64, 80), (299, 299), (300, 451), (620, 333)]


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def literal_bilinear(values, side, rows):
    """Computes some rows pixel by pixel, as TensorFlow 1 defines it."""
    height, width = values.shape[:2]
    made = np.empty((len(rows), side, 3))

    def place(index, length):
        at = index * length / side
        low = min(int(at), length - 1)
        return low, min(low + 1, length - 1), at - low

    for number, i in enumerate(rows):
        top, bottom, down = place(i, height)
        for j in range(side):
            left, right, along = place(j, width)
            above = values[top, left] * (1 - along) + values[top, right] * along
            below = values[bottom, left] * (1 - along) + values[bottom, right] * along
            made[number, j] = above * (1 - down) + below * down
    return made


@pytest.mark.parametrize("size", [(64, 80), (451, 300)])
def test_bilinear_without_antialiasing_matches_loops(size):
    values, rows = picture(*size).astype(np.float64), range(0, 299, 9)
    expected = (literal_bilinear(values, 299, rows) - 128) / 128
    found = preprocessing.INCEPTION["tf"](picture(*size))
    assert found.dtype == np.float32 and found.shape == (299, 299, 3)
    np.testing.assert_allclose(found[rows], expected, atol=2e-4)


@pytest.mark.parametrize("size", [*SIZES, (60, 40)])
def test_resizing_matches_pytorch(size):
    """clean-fid's filter is antialiased, works on floats, and is clipped where it overshoots."""
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(picture(*size).transpose(2, 0, 1)[None].astype(np.float32))
    resize = partial(torch.nn.functional.interpolate, size=(299, 299), align_corners=False)
    linear, cubic = resize(given, mode="bilinear"), resize(given, mode="bicubic", antialias=True)
    assert size == (299, 299) or (cubic.min() < 0 and cubic.max() > 255)
    expected = {"pytorch-fid": 2 * linear / 255 - 1, "clean": (cubic.clamp(0, 255) - 128) / 128}
    for name, values in expected.items():
        found = preprocessing.INCEPTION[name](picture(*size))
        np.testing.assert_allclose(found, values[0].numpy().transpose(1, 2, 0), atol=4e-4)


def test_a_picture_of_the_networks_size_is_unchanged():
    same = picture(299, 299)
    np.testing.assert_array_equal(preprocessing.INCEPTION["clean"](same) * 128 + 128, same)
    np.testing.assert_array_equal(preprocessing.INCEPTION["tf"](same) * 128 + 128, same)
    np.testing.assert_allclose((preprocessing.INCEPTION["pytorch-fid"](same) + 1) * 127.5, same, atol=1e-4)


def test_vggs_input_loses_the_aspect_ratio_and_is_normalised():
    one = picture(300, 451)
    sized = np.asarray(Image.fromarray(one).resize((224, 224), Image.Resampling.BILINEAR), np.float64)
    expected = (sized / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(preprocessing.vgg_imagenet(one), expected, atol=1e-5)


def test_lanterns_square_is_the_middle_of_the_picture():
    one = picture(300, 451)
    # Half of 151 is rounded to the even 76.
    middle = Image.fromarray(one[:, 76:376]).resize((256, 256), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(preprocessing.lantern_square(one), np.asarray(middle))
    np.testing.assert_array_equal(preprocessing.lantern_square(picture(256, 256)), picture(256, 256))
