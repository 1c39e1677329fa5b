"""Preprocessing: from pictures to the inputs of the metrics' networks, on the host.

The same network gives different features after a different resizing, so the preprocessing is part of a reader's name.

Axes: H W height and width of a picture, h w of a network's input, s its side.
"""

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from lantern_jax.io.errors import LanternError

INCEPTION_SIDE, VGG_SIDE, PROTOCOL_SIDE = 299, 224, 256
# Means and standard deviations of the channels: ImageNet's, for torchvision's weights, and CLIP's.
_IMAGENET = np.array(((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), np.float32)
CLIP_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
CLIP_DEVIATION = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
_BICUBIC = Image.Resampling.BICUBIC


def inception_clean(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "299 299 3"]:
    """Resizes with antialiasing: Pillow's bicubic on floats, clipped to 0 to 255, unrounded (arXiv 2104.11222)."""
    resized = _resize_floats(picture.astype(np.float32), INCEPTION_SIDE, INCEPTION_SIDE)
    return (np.clip(resized, 0, 255) - np.float32(128)) / np.float32(128)


def inception_pytorch_fid(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "299 299 3"]:
    """Resizes without antialiasing: bilinear between pixel centres, PyTorch's ``align_corners=False``."""
    unit = picture.astype(np.float32) / np.float32(255)
    return 2 * bilinear(unit, INCEPTION_SIDE, centres=True) - 1


def inception_tf(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "299 299 3"]:
    """Resizes without antialiasing: bilinear between upper left corners, as TensorFlow 1 does in the 2015 graph."""
    sized = bilinear(picture.astype(np.float32), INCEPTION_SIDE, centres=False)
    return (sized - np.float32(128)) / np.float32(128)


INCEPTION = {"clean": inception_clean, "pytorch-fid": inception_pytorch_fid, "tf": inception_tf}


def vgg_imagenet(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "224 224 3"]:
    """Resizes any sides to a square by Pillow's bilinear filter; normalises by ImageNet's mean and deviation."""
    sized = Image.fromarray(picture).resize((VGG_SIDE, VGG_SIDE), Image.Resampling.BILINEAR)
    return (np.asarray(sized, np.float32) / np.float32(255) - _IMAGENET[0]) / _IMAGENET[1]


def lantern_square(picture: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "256 256 3"]:
    """Resizes the middle square to 256 pixels by Pillow's Lanczos filter: LANTERN's first step for both sets."""
    height, width = picture.shape[:2]
    side = min(height, width)
    # Halves are rounded to even, as in torchvision's centre crop.
    top, left = round((height - side) / 2), round((width - side) / 2)
    square = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(square.resize((PROTOCOL_SIDE, PROTOCOL_SIDE), Image.Resampling.LANCZOS))


def clip_input(picture: UInt8[np.ndarray, "H W 3"], side: int) -> Float[np.ndarray, "s s 3"]:
    """Prepares a picture as CLIP does: Pillow's bicubic (antialiased, rounded) to a shortest side, then a centre crop.

    The crop is OpenAI's (torchvision's), which rounds half a pixel to even; transformers rounds it down.
    """
    image = Image.fromarray(_checked(picture))
    short = min(image.size)
    width, height = (side if extent == short else int(side * extent / short) for extent in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    image = image.resize((width, height), _BICUBIC).crop((left, top, left + side, top + side))
    return _normalized(np.asarray(image, np.float32) / 255)


def square_input(picture: UInt8[np.ndarray, "H W 3"], side: int) -> Float[np.ndarray, "s s 3"]:
    """Prepares a picture as CMMD does: the middle square, then Pillow's bicubic (antialiased, rounded)."""
    picture = _checked(picture)
    extent = min(picture.shape[:2])
    top, left = ((whole - extent) // 2 for whole in picture.shape[:2])
    square = Image.fromarray(picture[top : top + extent, left : left + extent])
    return _normalized(np.asarray(square.resize((side, side), _BICUBIC), np.float32) / 255)


def padded_input(picture: UInt8[np.ndarray, "H W 3"], side: int) -> Float[np.ndarray, "s s 3"]:
    """Prepares a picture as HPSv2 does: the longest side becomes ``side``, nothing is cut off, the rest is black.

    The original resizes a float tensor, so nothing is rounded or clipped; torchvision has antialiased it since 0.17.
    """
    values = _checked(picture).astype(np.float32) / 255
    scale = side / max(values.shape[:2])
    height, width = (max(1, round(extent * scale)) for extent in values.shape[:2])
    resized = _resize_floats(values, height, width)
    top, left = (side - height) // 2, (side - width) // 2
    padded = np.zeros((side, side, 3), np.float32)
    padded[top : top + height, left : left + width] = resized
    return _normalized(padded)


def _checked(picture: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "H W 3"]:
    picture = np.asarray(picture)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3 or not picture.size:
        raise LanternError(
            f"a picture is {picture.dtype} {list(picture.shape)}: give uint8 [height, width, 3], red green blue"
        )
    return picture


def _normalized(values: Float[np.ndarray, "s s 3"]) -> Float[np.ndarray, "s s 3"]:
    return (values - CLIP_MEAN) / CLIP_DEVIATION


def _resize_floats(values: Float[np.ndarray, "H W 3"], height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    """Resizes by Pillow's antialiased bicubic, channel by channel, as Pillow's float pictures have only one."""
    channels = (Image.fromarray(np.ascontiguousarray(values[..., c])) for c in range(values.shape[-1]))
    return np.stack([np.asarray(image.resize((width, height), _BICUBIC)) for image in channels], axis=-1)


def bilinear(
    picture: Float[np.ndarray, "H W c"], side: int, *, centres: bool
) -> Float[np.ndarray, "side side c"]:
    """Resizes to float32 [side, side, c] by linear interpolation between two pixels each way, however small.

    Args:
        centres: whether places are those of pixels' centres; otherwise they are those of their upper left corners.
    """
    low, high, part = _neighbours(picture.shape[0], side, centres)
    rows = picture[low] + (picture[high] - picture[low]) * part[:, None, None]
    low, high, part = _neighbours(picture.shape[1], side, centres)
    return rows[:, low] + (rows[:, high] - rows[:, low]) * part[None, :, None]


def _neighbours(
    length: int, side: int, centres: bool
) -> tuple[Int[np.ndarray, " side"], Int[np.ndarray, " side"], Float[np.ndarray, " side"]]:
    """Returns the pixels before and after each new place, and its distance from the former, in float32 as published."""
    half, scale = np.float32(0.5 if centres else 0), np.float32(length) / np.float32(side)
    place = np.maximum((np.arange(side, dtype=np.float32) + half) * scale - half, np.float32(0))
    low = np.minimum(place.astype(np.int64), length - 1)
    return low, np.minimum(low + 1, length - 1), place - low.astype(np.float32)
