"""Files of pictures: reading those of users, and the texts that ours carry. Axes: H W height and width, T tokens."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int
from PIL import Image, UnidentifiedImageError

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file

# Pillow knows others, which are programs (EPS) or rarely read.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Suffixes of the files in a folder that are taken for pictures.
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


def open_image(file: BinaryIO) -> Image.Image:
    """Opens a picture without reading its pixels.

    Raises LanternError unless it is a PNG, JPEG, WebP, GIF or BMP with no more pixels than Pillow thinks harmless.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:  # It shows the Python object.
        raise LanternError(f"none of {', '.join(_FORMATS)}") from None
    # A damaged file makes Pillow's readers raise anything.
    except Exception as error:
        raise LanternError(errors.short(error)) from error


def open_picture(file: Path) -> Image.Image:
    """Reads a whole picture; raises LanternError if that is not possible."""
    try:
        with open_file(file) as stream, open_image(stream) as image, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
        return image
    except Exception as error:
        raise LanternError(
            f"{file}: not a readable picture ({errors.short(error)}); remove or replace it"
        ) from error


def origin_text(
    prompt: str,
    seed: int,
    number: int,
    settings: Mapping[str, Any],
    tokens: Int[np.ndarray, " T"],
    **more: Any,
) -> dict[str, str]:
    """Returns the texts of a picture's PNG, for ``encode_png``: all that is needed to make it again, except a picture
    that it continues.

    Args:
        number: the picture's number, which with ``seed`` decides its randomness.
        settings: as ``Generation.settings``.
        more: other options of the call, of which those that are not None join the settings.
    """
    given = {name: value for name, value in more.items() if value is not None}
    return {
        "Software": "lantern_jax",
        "prompt": prompt,
        "seed": str(seed),
        "number": str(number),
        "settings": json.dumps({**settings, **given}),
        "tokens": tokens_digest(tokens),
    }


def tokens_digest(tokens: Int[np.ndarray, " T"]) -> str:
    """Returns the hexadecimal SHA-256 of a picture's codes as little-endian int32."""
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()
