"""What networks are given of a picture, against loops, Pillow and PyTorch."""

import math

import numpy as np
import pytest
from PIL import Image

from lantern_jax.metrics import preprocessing

SIZES = [(64, 80), (299, 299), (300, 451), (620, 333)]


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def literal_bilinear(values, side, rows):
    """One new pixel after the other of some rows, as TensorFlow 1 defines it."""
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
def test_bilinear_without_antialiasing_is_that_of_loops(size):
    values, rows = picture(*size).astype(np.float64), range(0, 299, 9)
    expected = (literal_bilinear(values, 299, rows) - 128) / 128
    found = preprocessing.INCEPTION["tf"](picture(*size))
    assert found.dtype == np.float32 and found.shape == (299, 299, 3)
    np.testing.assert_allclose(found[rows], expected, atol=2e-4)


@pytest.mark.parametrize("size", SIZES)
def test_pytorch_fid_is_pytorchs(size):
    torch = pytest.importorskip("torch")
    unit = torch.from_numpy(picture(*size).transpose(2, 0, 1)[None].astype(np.float32) / 255)
    sized = torch.nn.functional.interpolate(unit, (299, 299), mode="bilinear", align_corners=False)
    expected = (2 * sized - 1)[0].numpy().transpose(1, 2, 0)
    np.testing.assert_allclose(preprocessing.INCEPTION["pytorch-fid"](picture(*size)), expected, atol=1e-4)


def literal_bicubic(length, side):
    """Pillow's antialiased cubic filter (a = -0.5) along a line, in float64: the weights [side, length]."""
    scale = max(length / side, 1)

    def weight(x):
        x = abs(x)
        if x < 1:
            return 1.5 * x**3 - 2.5 * x**2 + 1
        return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    made = np.zeros((side, length))
    for i in range(side):
        centre = (i + 0.5) * length / side
        first, last = (max(int(centre - 2 * scale + 0.5), 0), min(int(centre + 2 * scale + 0.5), length))
        weights = [weight((j - centre + 0.5) / scale) for j in range(first, last)]
        made[i, first:last] = np.array(weights) / math.fsum(weights)
    return made


@pytest.mark.parametrize("size", [(60, 40), (320, 310)])
def test_clean_is_an_antialiased_bicubic_filter_of_floats(size):
    values = picture(*size).astype(np.float64)
    down, across = (literal_bicubic(length, 299) for length in size)
    expected = np.einsum("ih,hwc,jw->ijc", down, values, across, optimize=True)
    # Some values are cut: the filter overshoots.
    assert expected.min() < 0 and expected.max() > 255
    found = preprocessing.INCEPTION["clean"](picture(*size))
    np.testing.assert_allclose(found, (np.clip(expected, 0, 255) - 128) / 128, atol=2e-4)
    assert np.any(found * 128 % 1), "not rounded"


def test_a_picture_of_the_networks_size_stays():
    same = picture(299, 299)
    np.testing.assert_array_equal(preprocessing.INCEPTION["clean"](same) * 128 + 128, same)
    np.testing.assert_array_equal(preprocessing.INCEPTION["tf"](same) * 128 + 128, same)
    np.testing.assert_allclose((preprocessing.INCEPTION["pytorch-fid"](same) + 1) * 127.5, same, atol=1e-4)


def test_vggs_input_loses_the_aspect_and_is_normalized():
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


def test_lanterns_slip_drops_63_levels_by_one():
    levels = np.arange(256, dtype=np.uint8)[:, None, None].repeat(3, axis=2)
    lost = levels.astype(int) - preprocessing.truncate_levels(levels)
    assert set(np.unique(lost)) == {0, 1} and lost[..., 0].sum() == 63
