"""Requests to continue a picture: multipart forms with a picture and a mask, as OpenAI's clients send them.

Axes: H W height and width.
"""

import contextlib
import io
import json
import re
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from lantern_jax.apps.serve.limits import Refused
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.pictures.images import fitted, open_image, upright
from lantern_jax.settings.settings import KNOBS

MOST_PARTS = 64
# Bytes of the lines that name a part: clients send a hundred or two.
MOST_HEAD = 4096
# Pixels of a picture: a small file may hold very many.
MOST_PIXELS = 2**24
# Fields that are not text, besides knobs that are numbers.
_JSON = (
    "details",
    "keep_rows",
    "n",
    "output_compression",
    "partial_images",
    "seed",
    "stream",
)
# Names, or lists in JSON.
_EITHER = ("tree", "mixture")
# The media type of a form with its boundary, which is visible ASCII.
_FORM = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=("?)([!#-:<-~]{1,70})\1\s*(?:;.*)?', re.ASCII | re.IGNORECASE
)
# Within one line of a part's head: a search across lines would take time quadratic in their length.
_NAME = re.compile(
    rb'^content-disposition:[^\r\n]*?[; \t]name="([^"\r\n]{1,100})"', re.IGNORECASE | re.MULTILINE
)
_FILES = {"image": "image", "image[]": "image", "mask": "mask"}


def boundary_of(media_type: str) -> bytes:
    """Returns what separates the parts of a form of this media type. Raises Refused if it is not that of a form."""
    form = _FORM.fullmatch(media_type.strip())
    if form is None:
        raise Refused(
            415, "the body is no form with files: send Content-Type: multipart/form-data; boundary=..."
        )
    return form[2].encode("ascii")


def read_form(content: bytes, boundary: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns the fields and the files of a form's body; numbers and flags are read as JSON.

    Raises:
        Refused: not such a form, more parts or longer heads than any client sends, or several pictures.
    """
    parts = (b"\r\n" + content).split(b"\r\n--" + boundary, MOST_PARTS)
    if len(parts) < 3 or len(parts) > MOST_PARTS or not parts[-1].startswith(b"--"):
        raise Refused(400, f"the form is not whole, or has more than {MOST_PARTS} parts: send it again")
    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for part in parts[1:-1]:
        name, value = _name_and_value(part)
        if name in _FILES:
            if _FILES[name] in files:
                raise Refused(
                    400, f"there are several files {name}: this server goes on with one picture", name
                )
            files[_FILES[name]] = value
        else:
            fields[name] = _value(name, value)
    return fields, files


def _name_and_value(part: bytes) -> tuple[str, bytes]:
    end = part.find(b"\r\n\r\n", 0, MOST_HEAD)
    found = _NAME.search(part, 0, end) if end >= 0 else None
    if found is None:
        raise Refused(
            400,
            f"a part of the form has no name in its first {MOST_HEAD} bytes: send Content-Disposition: form-data; "
            "name=...",
        )
    return found[1].decode("utf-8", "replace"), part[end + 4 :]


def _value(name: str, value: bytes) -> Any:
    is_json = name in _JSON or (name in KNOBS and KNOBS[name].type in (int, float))
    try:
        text = value.decode("utf-8")
        if is_json:
            return json.loads(text)
    except (ValueError, RecursionError):
        wanted = "a number, true, false or a list" if is_json else "text in UTF-8"
        raise Refused(
            400, f"{errors.quoted(name, 60)} of the form cannot be read: give {wanted}", name
        ) from None
    if name in _EITHER:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def read_start(files: dict[str, bytes], rows: int, size: str) -> tuple[Image.Image, int | None]:
    """Returns a form's picture, its middle part fitted to the model's ``size``, and how many of the model's rows of
    codes its mask keeps, None without a mask.

    The mask is clear (without opacity) where the picture is painted anew: everywhere below a line. Without a mask the
    picture's own opacity serves as one.

    Raises:
        Refused: no picture, or a mask of another size or shape.
    """
    if "image" not in files:
        raise Refused(400, "there is no picture to go on with: send it as the file image", "image")
    picture = _picture(files["image"], "image")
    mask = _picture(files["mask"], "mask") if "mask" in files else picture
    if mask.size != picture.size:
        sizes = f"{mask.width}x{mask.height}, the picture {picture.width}x{picture.height}"
        raise Refused(400, f"the mask has {sizes}: send one of the picture's size", "mask")
    kept = None
    if "A" in mask.getbands() or "transparency" in mask.info:
        opacity = np.asarray(mask.convert("RGBA").getchannel("A"))
        if opacity.min() < 255 or mask is not picture:
            kept = _kept_rows(opacity, rows, size)
    elif mask is not picture:
        raise Refused(400, f"the mask hides nothing: {_LINE}", "mask")
    # The picture that was sent may have hundreds of times the pixels, which would be kept until its turn comes.
    return Image.fromarray(fitted(picture, *map(int, size.split("x")))), kept


_LINE = "make it opaque above a line and clear below, where the picture is painted anew"


def _kept_rows(opacity: UInt8[np.ndarray, "H W"], rows: int, size: str) -> int:
    """Returns how many of the picture's rows of codes lie above the line; those that it cuts are painted anew."""
    width, height = map(int, size.split("x"))
    drawn = (
        np.asarray(ImageOps.fit(Image.fromarray(opacity), (width, height), Image.Resampling.NEAREST)) > 127
    )
    kept = int(drawn[:, 0].sum())
    if not (drawn[:kept].all() and not drawn[kept:].any()):
        raise Refused(400, f"the mask is not of whole rows: {_LINE}", "mask")
    count = kept * rows // height
    if not 0 < count < rows:
        raise Refused(
            400, f"the mask keeps {count} of {rows} rows of codes: keep one at least, and not all", "mask"
        )
    return count


def _picture(content: bytes, name: str) -> Image.Image:
    try:
        picture = open_image(io.BytesIO(content))
        if picture.width * picture.height > MOST_PIXELS:
            raise LanternError(f"{picture.width}x{picture.height} pixels, more than {MOST_PIXELS}")
        picture.load()
    except Exception as error:
        why = str(error) if isinstance(error, LanternError) else errors.short(error)
        raise Refused(
            400, f"the file {name} is no picture that can be read ({why}): send another one", name
        ) from None
    return upright(picture)
