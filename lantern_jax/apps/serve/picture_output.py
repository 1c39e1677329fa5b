"""How a request wants its pictures: their size, the file's format, in the answer or at an address.

Axes: H W height and width.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from lantern_jax.apps.serve.limits import Refused
from lantern_jax.io import errors
from lantern_jax.pictures.images import encode_png

FORMATS = ("png", "jpeg", "webp")
# The fewest and the most pixels of a side that a picture is scaled to.
LEAST_SIDE, MOST_SIDE = 16, 2048


@dataclass(frozen=True)
class Output:
    """What becomes of a picture.

    Attributes:
        size: of the answer, WIDTHxHEIGHT in pixels; a picture of another size is scaled to cover it, and cropped.
        format: of the file.
        quality: of the file, 0 to 100, where the format has one.
        as_url: whether the answer links to the file rather than holding it.
    """

    size: str
    format: str = "png"
    quality: int = 100
    as_url: bool = False

    def encode(self, picture: UInt8[np.ndarray, "H W 3"], text: Mapping[str, str] | None = None) -> bytes:
        """Returns the file of a picture; a PNG also holds ``text``, by keyword."""
        width, height = map(int, self.size.split("x"))
        if picture.shape[:2] != (height, width):
            fitted = ImageOps.fit(Image.fromarray(picture), (width, height), Image.Resampling.LANCZOS)
            picture = np.asarray(fitted)
        if self.format == "png":
            return encode_png(picture, text)
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format=self.format, quality=self.quality)
        return buffer.getvalue()


def read_output(given: Mapping[str, Any], drawn: str, scales: bool) -> tuple[Output, tuple[str, ...]]:
    """Reads the fields of a request that say what becomes of its pictures; also returns notes for people.

    Args:
        given: fields, each of which is valid by itself.
        drawn: the size that the model draws.
        scales: whether pictures are scaled to the requested size; if not, they keep the model's own.

    Raises:
        Refused: a size that is none, or fields that do not fit together.
    """
    size, notes = given.get("size", "auto"), ()
    parts = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", size)
    if size == "auto":
        size = drawn
    elif parts is None or not all(LEAST_SIDE <= int(part) <= MOST_SIDE for part in parts.groups()):
        wanted = f"auto, or WIDTHxHEIGHT of {LEAST_SIDE} to {MOST_SIDE}"
        raise Refused(400, str(errors.invalid("size", size, wanted)), "size")
    elif size != drawn and not scales:
        size, notes = drawn, (f"size {size} is not drawn by this model: the pictures have {drawn}",)
    form, quality = given.get("output_format", "png"), given.get("output_compression")
    if quality is not None and form == "png":
        message = "output_compression is of jpeg and webp: give one as output_format, or leave it out"
        raise Refused(400, message, "output_compression")
    as_url = given.get("response_format") == "url"
    if as_url and given.get("stream"):
        message = "a stream holds its pictures: leave response_format or stream out"
        raise Refused(400, message, "response_format")
    return Output(size, form, 100 if quality is None else quality, as_url), notes
