"""From pictures to what the networks of the metrics take, on the host.

The same network gives other features after another resizing, so a preprocessing is part of a reader's name.

Axes: H W height and width of a picture, h w of what a network takes.
"""

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

INCEPTION_SIDE, VGG_SIDE, PROTOCOL_SIDE = 299, 224, 256
# The means and standard deviations of ImageNet's channels that torchvision's weights were trained with.
_IMAGENET_MEAN = np.array((0.485, 0.456, 0.406), np.float32)
_IMAGENET_DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)


def inception_clean(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "299 299 3"]:
    """Antialiased: Pillow's bicubic filter on each channel as floats, cut to 0 to 255, unrounded (arXiv 2104.11222)."""
    size = (INCEPTION_SIDE, INCEPTION_SIDE)
    channels = [
        np.asarray(Image.fromarray(channel).resize(size, Image.Resampling.BICUBIC))
        for channel in np.ascontiguousarray(picture.astype(np.float32).transpose(2, 0, 1))
    ]
    return (np.clip(np.stack(channels, axis=-1), 0, 255) - np.float32(128)) / np.float32(128)


def inception_pytorch_fid(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "299 299 3"]:
    """Not antialiased: bilinear between pixel centres, as PyTorch interpolates with ``align_corners=False``."""
    unit = picture.astype(np.float32) / np.float32(255)
    return 2 * bilinear(unit, INCEPTION_SIDE, centres=True) - 1


def inception_tf(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "299 299 3"]:
    """Not antialiased: bilinear between pixels' upper left corners, as TensorFlow 1 has it inside the 2015 graph."""
    sized = bilinear(picture.astype(np.float32), INCEPTION_SIDE, centres=False)
    return (sized - np.float32(128)) / np.float32(128)


def vgg_imagenet(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "224 224 3"]:
    """Antialiased, to a square whatever the sides: Pillow's bilinear filter, then ImageNet's mean and deviation."""
    sized = Image.fromarray(picture).resize((VGG_SIDE, VGG_SIDE), Image.Resampling.BILINEAR)
    return (np.asarray(sized, np.float32) / np.float32(255) - _IMAGENET_MEAN) / _IMAGENET_DEVIATION


INCEPTION = {"clean": inception_clean, "pytorch-fid": inception_pytorch_fid, "tf": inception_tf}


def lantern_square(picture: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "256 256 3"]:
    """The middle square of a picture, by Pillow's Lanczos filter to 256 pixels: LANTERN's first step of both sides."""
    height, width = picture.shape[:2]
    side = min(height, width)
    # Halves are rounded to even, as torchvision's centre crop has it.
    top, left = round((height - side) / 2), round((width - side) / 2)
    square = Image.fromarray(picture[top : top + side, left : left + side])
    return np.asarray(square.resize((PROTOCOL_SIDE, PROTOCOL_SIDE), Image.Resampling.LANCZOS))


def truncate_levels(picture: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "H W 3"]:
    """LANTERN's slip before CLIP: to -1 to 1 and back without rounding, by which 63 of the 256 levels drop by one."""
    signed = (picture.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    return np.clip((signed + np.float32(1)) * np.float32(127.5), 0, 255).astype(np.uint8)


def bilinear(
    picture: Float[np.ndarray, "H W c"], side: int, *, centres: bool
) -> Float[np.ndarray, "side side c"]:
    """float32 [side, side, c] by linear interpolation between two pixels each way, however much smaller it gets.

    Args:
        centres: places are those of pixels' centres; else of their upper left corners.
    """
    low, high, part = _neighbours(picture.shape[0], side, centres)
    rows = picture[low] + (picture[high] - picture[low]) * part[:, None, None]
    low, high, part = _neighbours(picture.shape[1], side, centres)
    return rows[:, low] + (rows[:, high] - rows[:, low]) * part[None, :, None]


def _neighbours(
    length: int, side: int, centres: bool
) -> tuple[Int[np.ndarray, " side"], Int[np.ndarray, " side"], Float[np.ndarray, " side"]]:
    """The pixels before and after each new place, and how far it is from the one before; in float32 as published."""
    half, scale = np.float32(0.5 if centres else 0), np.float32(length) / np.float32(side)
    place = np.maximum((np.arange(side, dtype=np.float32) + half) * scale - half, np.float32(0))
    low = np.minimum(place.astype(np.int64), length - 1)
    return low, np.minimum(low + 1, length - 1), place - low.astype(np.float32)
