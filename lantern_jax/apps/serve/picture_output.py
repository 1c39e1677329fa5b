"""How a request wants its pictures: as what file, in the answer or at an address. Axes: H W height and width."""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from lantern_jax.apps.serve.limits import Refused
from lantern_jax.io import errors
from lantern_jax.pictures.images import encode_png

FORMATS = ("png", "jpeg", "webp")


@dataclass(frozen=True)
class Output:
    """What becomes of a picture.

    Attributes:
        size: WIDTHxHEIGHT in pixels, the model's.
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
        if self.format == "png":
            return encode_png(picture, text)
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, format=self.format, quality=self.quality)
        return buffer.getvalue()


def read_output(given: Mapping[str, Any], drawn: str) -> tuple[Output, tuple[str, ...]]:
    """Reads the fields, each valid by itself, that say what becomes of pictures; also returns notes for people.

    Pictures have the size that the model draws. Raises Refused for fields that do not fit together, and no size.
    """
    size, form, quality = (given.get(name) for name in ("size", "output_format", "output_compression"))
    notes, form = (), form or "png"
    if size not in (None, "auto", drawn):
        if not re.fullmatch(r"[1-9]\d{1,3}x[1-9]\d{1,3}", size):
            raise Refused(400, str(errors.invalid("size", size, "auto, or WIDTHxHEIGHT in pixels")), "size")
        notes = (f"size {size} is not drawn by this model: the pictures have {drawn}",)
    if quality is not None and form == "png":
        message = "output_compression is of jpeg and webp: give one as output_format, or leave it out"
        raise Refused(400, message, "output_compression")
    as_url = given.get("response_format") == "url"
    if as_url and given.get("stream"):
        message = "a stream holds its pictures: leave response_format or stream out"
        raise Refused(400, message, "response_format")
    return Output(drawn, form, 100 if quality is None else quality, as_url), notes
