"""Pictures as CLIP's networks take them: three published ways to their square.

All give float32 [side, side, 3] with CLIP's mean and deviation taken out. Axes: H W height and width, s side.
"""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from lantern_jax.io.errors import LanternError

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
DEVIATION = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
_BICUBIC = Image.Resampling.BICUBIC
# PyTorch's cubic without antialiasing; with it, and in Pillow, -0.5.
_CUBIC = -0.75


def clip_input(picture: UInt8[np.ndarray, "H W 3"], side: int) -> Float[np.ndarray, "s s 3"]:
    """CLIP's own: Pillow's bicubic (antialiased, rounded to uint8) to a shortest side of ``side``, then its middle.

    The middle is OpenAI's (torchvision's), which rounds half a pixel to even; transformers rounds it down.
    """
    image = Image.fromarray(_checked(picture))
    short = min(image.size)
    width, height = (side if extent == short else int(side * extent / short) for extent in image.size)
    left, top = round((width - side) / 2), round((height - side) / 2)
    image = image.resize((width, height), _BICUBIC).crop((left, top, left + side, top + side))
    return _normalized(np.asarray(image, np.float32) / 255)


def square_input(picture: UInt8[np.ndarray, "H W 3"], side: int) -> Float[np.ndarray, "s s 3"]:
    """CMMD's: the middle square, then Pillow's bicubic (antialiased, rounded to uint8)."""
    picture = _checked(picture)
    extent = min(picture.shape[:2])
    top, left = ((whole - extent) // 2 for whole in picture.shape[:2])
    square = Image.fromarray(picture[top : top + extent, left : left + extent])
    return _normalized(np.asarray(square.resize((side, side), _BICUBIC), np.float32) / 255)


def padded_input(
    picture: UInt8[np.ndarray, "H W 3"], side: int, antialias: bool = True
) -> Float[np.ndarray, "s s 3"]:
    """HPSv2's: the longest side becomes ``side``, nothing is cut off, and the rest is black.

    The original resizes a float tensor, so nothing is rounded or clipped.

    Args:
        antialias: as torchvision does since 0.17; False is what it did before, which gives other scores.
    """
    values = _checked(picture).astype(np.float32) / 255
    scale = side / max(values.shape[:2])
    height, width = (max(1, round(extent * scale)) for extent in values.shape[:2])
    resized = (_resize_antialiased if antialias else _resize_plainly)(values, height, width)
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
    return (values - MEAN) / DEVIATION


def _resize_antialiased(
    values: Float[np.ndarray, "H W 3"], height: int, width: int
) -> Float[np.ndarray, "h w 3"]:
    """By Pillow, channel by channel, because its float pictures have one."""
    channels = (Image.fromarray(np.ascontiguousarray(values[..., c])) for c in range(values.shape[-1]))
    return np.stack([np.asarray(image.resize((width, height), _BICUBIC)) for image in channels], axis=-1)


def _resize_plainly(
    values: Float[np.ndarray, "H W 3"], height: int, width: int
) -> Float[np.ndarray, "h w 3"]:
    """Bicubic from the four nearest pixels a direction, however small the result is."""
    values = _cubic_weights(values.shape[0], height) @ values.reshape(values.shape[0], -1)
    values = values.reshape(height, -1, 3).transpose(1, 0, 2)
    turned = _cubic_weights(values.shape[0], width) @ values.reshape(values.shape[0], -1)
    return turned.reshape(width, height, 3).transpose(1, 0, 2)


def _cubic_weights(whole: int, wanted: int) -> Float[np.ndarray, "wanted whole"]:
    """What each of ``whole`` pixels counts for each of ``wanted``; the edge's go on beyond it (Keys' cubic, 1981)."""
    place = (np.arange(wanted) + 0.5) * whole / wanted - 0.5
    first = np.floor(place).astype(int)
    weights = np.zeros((wanted, whole))
    for offset in (-1, 0, 1, 2):
        distance = np.abs(place - (first + offset))
        near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
        far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        pixel = np.clip(first + offset, 0, whole - 1)
        np.add.at(weights, (np.arange(wanted), pixel), np.where(distance <= 1, near, far))
    return weights.astype(np.float32)
