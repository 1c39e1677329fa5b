"""Pictures as CLIP, CMMD and HPSv2 take them, against Pillow, transformers and PyTorch."""

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.metrics import preprocessing
from tests.metrics.tiny_clip import random_pictures
from tests.refused import refused

SIDE = 28
SIZES = ((28, 28), (56, 56), (40, 70), (71, 33), (20, 12), (28, 31), (33, 28), (28, 45))


def pixels(prepared):
    assert prepared.dtype == np.float32 and prepared.shape == (SIDE, SIDE, 3)
    return (prepared * preprocessing.CLIP_DEVIATION + preprocessing.CLIP_MEAN) * 255


@pytest.mark.parametrize(("size", "resized", "corner"), [
    ((56, 56), (28, 28), (0, 0)),
    # The longer side is rounded down to whole pixels: 49 of 70 * 28 / 40, 60 of 60.2; left and top of the middle.
    ((40, 70), (49, 28), (10, 0)),
    ((71, 33), (28, 60), (0, 16)),
    ((20, 12), (28, 46), (0, 9)),
    # Half a pixel is rounded to even: 1.5 to 2, 2.5 to 2, 8.5 to 8.
    ((28, 31), (31, 28), (2, 0)),
    ((33, 28), (28, 33), (0, 2)),
    ((28, 45), (45, 28), (8, 0)),
])  # fmt: skip
def test_clips_preprocessing_matches_pillow(size, resized, corner):
    (picture,) = random_pictures([size])
    image = Image.fromarray(picture)
    if image.size != resized:
        image = image.resize(resized, Image.Resampling.BICUBIC)
    left, top = corner
    expected = np.asarray(image)[top : top + SIDE, left : left + SIDE]
    np.testing.assert_allclose(pixels(preprocessing.clip_input(picture, SIDE)), expected, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_the_middle_square_matches_pillow(size):
    (picture,) = random_pictures([size])
    image = Image.fromarray(picture)
    width, height = image.size
    extent = min(width, height)
    left, top = (width - extent) // 2, (height - extent) // 2
    image = image.crop((left, top, left + extent, top + extent))
    expected = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    np.testing.assert_allclose(pixels(preprocessing.square_input(picture, SIDE)), expected, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_hpsv2s_padding_matches_pytorch(size):
    torch = pytest.importorskip("torch")
    (picture,) = random_pictures([size])
    tensor = torch.tensor(picture).permute(2, 0, 1)[None].float() / 255
    scale = SIDE / float(max(size))
    height, width = (round(extent * scale) for extent in size)
    resize = torch.nn.functional.interpolate
    tensor = resize(tensor, (height, width), mode="bicubic", align_corners=False, antialias=True)
    down, right = SIDE - height, SIDE - width
    around = (right // 2, right - right // 2, down // 2, down - down // 2)
    padded = torch.nn.functional.pad(tensor, around)[0].permute(1, 2, 0).numpy()
    expected = (padded - preprocessing.CLIP_MEAN) / preprocessing.CLIP_DEVIATION
    np.testing.assert_allclose(preprocessing.padded_input(picture, SIDE), expected, atol=1e-4)


def test_very_thin_pictures_keep_a_row():
    (picture,) = random_pictures([(1, 300)])
    assert (np.abs(pixels(preprocessing.padded_input(picture, SIDE))).max(axis=(1, 2)) > 1).sum() == 1


def test_what_is_no_picture_is_refused():
    for picture in (
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 3), np.float32),
        np.zeros((0, 8, 3), np.uint8),
    ):
        for prepare in (preprocessing.clip_input, preprocessing.square_input, preprocessing.padded_input):
            with refused(r"give uint8 \[height, width, 3\]"):
                prepare(picture, SIDE)
