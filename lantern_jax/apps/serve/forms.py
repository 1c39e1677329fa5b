"""Requests to continue a picture: multipart forms with a picture and a mask, as OpenAI's clients send them.

Axes: H W height and width.
"""

import io
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from lantern_jax.apps.display.picture_files import open_image
from lantern_jax.apps.serve.limits import Refused
from lantern_jax.apps.serve.picture_request import FIELDS, Text
from lantern_jax.decoding.fields import Names
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import parse_json
from lantern_jax.pictures.images import fitted, upright

MOST_FIELDS = 64
# Pixels of a picture: a small file may hold very many.
MOST_PIXELS = 2**24
_FILES = {"image": "image", "image[]": "image", "mask": "mask"}
_LINE = "make it opaque above a line and clear below, where the picture is painted anew"


async def read_form(request: Request, most: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Reads a form; returns its fields, of at most ``most`` bytes, and its files. Numbers and flags are read as JSON.

    Raises:
        Refused: not a form, more fields than any client sends, or several pictures.
    """
    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    try:
        async with request.form(max_files=2, max_fields=MOST_FIELDS, max_part_size=most) as form:
            for name, value in form.multi_items():
                if isinstance(value, str):
                    is_text = isinstance(FIELDS.get(name, Text()), Text | Names)
                    fields[name] = value if is_text else parse_json(value, name)
                elif name not in _FILES or _FILES[name] in files:
                    raise LanternError(
                        f"file {errors.quoted(name, 60)}: give one image, and its mask or none"
                    )
                else:
                    files[_FILES[name]] = await value.read()
    except (FormParserError, HTTPException, LanternError) as error:
        why = errors.short(error.detail if isinstance(error, HTTPException) else error)
        raise Refused(400, f"the form cannot be read ({why}): send fields and the file image") from None
    return fields, files


def read_start(files: dict[str, bytes], rows: int, size: str) -> tuple[Image.Image, int | None]:
    """Returns a form's picture, its middle part fitted to the model's ``size``, and how many of the model's rows of
    codes its mask keeps, None without a mask.

    The mask is clear (without opacity) where the picture is painted anew: everywhere below a line. Without a mask the
    picture's own opacity serves as one.

    Raises:
        Refused: no picture, or a mask of another size or shape.
    """
    wanted = tuple(map(int, size.split("x")))
    if "image" not in files:
        raise Refused(400, "there is no picture to go on with: send it as the file image", "image")
    picture = _picture(files["image"], "image")
    mask = _picture(files["mask"], "mask") if "mask" in files else picture
    if mask.size != picture.size:
        sizes = f"{mask.width}x{mask.height}, the picture {picture.width}x{picture.height}"
        raise Refused(400, f"the mask has {sizes}: send one of the picture's size", "mask")
    opacity, kept = np.asarray(mask.convert("RGBA").getchannel("A")), None
    if opacity.min() < 255:
        kept = _kept_rows(opacity, rows, wanted)
    elif mask is not picture:
        raise Refused(400, f"the mask hides nothing: {_LINE}", "mask")
    # The picture that was sent may have hundreds of times the pixels, which would be kept until its turn comes.
    return Image.fromarray(fitted(picture, *wanted)), kept


def _kept_rows(opacity: UInt8[np.ndarray, "H W"], rows: int, size: tuple[int, ...]) -> int:
    """Returns how many of the picture's rows of codes lie above the line; those that it cuts are painted anew."""
    drawn = np.asarray(ImageOps.fit(Image.fromarray(opacity), size, Image.Resampling.NEAREST)) > 127
    kept = int(drawn[:, 0].sum())
    if not (drawn[:kept].all() and not drawn[kept:].any()):
        raise Refused(400, f"the mask is not of whole rows: {_LINE}", "mask")
    count = kept * rows // len(drawn)
    if not 0 < count < rows:
        message = f"the mask keeps {count} of {rows} rows of codes: keep one at least, and not all"
        raise Refused(400, message, "mask")
    return count


def _picture(content: bytes, name: str) -> Image.Image:
    try:
        picture = open_image(io.BytesIO(content))
        if picture.width * picture.height > MOST_PIXELS:
            raise LanternError(f"{picture.width}x{picture.height} pixels, more than {MOST_PIXELS}")
        picture.load()
    except Exception as error:  # A damaged file makes Pillow's readers raise anything.
        why = errors.short(error)
        raise Refused(400, f"the file {name} cannot be read ({why}): send another one", name) from None
    return upright(picture)
