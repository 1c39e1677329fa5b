"""Pictures as arrays: files, grids, pictures side by side, the acceptance overlay, PNG bytes with texts.

Pictures are uint8 [H, W, 3] or [n, H, W, 3]. Axes: n pictures, H W height and width, T tokens.
"""

import base64
import contextlib
import html
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont, ImageOps
from PIL.PngImagePlugin import PngInfo

from lantern_jax.io.errors import LanternError

# In a notebook: a page with more is slow to scroll.
MOST_PICTURES = 64
_BACKGROUND = 18
_INK = (235, 235, 235)
LINE_HEIGHT = 18


def fitted(image: Image.Image, width: int, height: int) -> UInt8[np.ndarray, "height width 3"]:
    """Turns a picture upright, crops its middle part to the proportions of a shape, and resizes that to the shape."""
    image = in_colour(upright(image))
    return np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS), dtype=np.uint8)


def upright(image: Image.Image) -> Image.Image:
    """Turns a picture upright, the way its camera was held."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        # A damaged note of the camera's position is ignored, like any error that Pillow raises.
        warnings.simplefilter("ignore")
        image = ImageOps.exif_transpose(image)
    return image


def in_colour(image: Image.Image) -> Image.Image:
    """Converts a picture to red, green and blue of 8 bits each."""
    if image.mode.startswith("I;16"):
        # Pillow would turn all but the darkest of 16-bit greys white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def grid(
    pictures: UInt8[np.ndarray, "n H W 3"] | Sequence[UInt8[np.ndarray, "H W 3"]],
    columns: int | None = None,
    gap: int = 4,
) -> UInt8[np.ndarray, "GH GW 3"]:
    """Joins pictures into one: ``columns`` per row (None: nearly square), ``gap`` pixels apart.

    Raises LanternError for no pictures or fewer than one column.

    Example:
        >>> pictures = np.zeros((3, 128, 128, 3), np.uint8)
        >>> lantern_jax.grid(pictures).shape
        (260, 260, 3)
    """
    pictures = np.asarray(pictures)
    if pictures.ndim != 4 or pictures.shape[-1] != 3 or not len(pictures):
        raise LanternError(f"pictures have shape {pictures.shape}: give at least one, as [n, H, W, 3]")
    count, height, width = pictures.shape[:3]
    if columns is None:
        columns = math.ceil(math.sqrt(count))
    if columns < 1:
        raise LanternError(f"{columns} columns do not make a grid: give at least 1")
    rows = math.ceil(count / columns)
    sheet = canvas(rows * (height + gap) - gap, columns * (width + gap) - gap)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def side_by_side(
    pictures: Sequence[UInt8[np.ndarray, "H W 3"]], captions: Sequence[str] = (), gap: int = 4
) -> UInt8[np.ndarray, "SH SW 3"]:
    """Joins pictures in a row, with a line of text below each; shorter ones are padded at the bottom.

    Raises LanternError if there are captions, but not one per picture.

    Example:
        >>> pictures = np.zeros((2, 128, 128, 3), np.uint8)
        >>> lantern_jax.side_by_side(pictures, ["plain", "speculative"]).shape
        (146, 260, 3)
    """
    if captions and len(captions) != len(pictures):
        raise LanternError(f"{len(captions)} captions for {len(pictures)} pictures: give one each, or none")
    height = max(picture.shape[0] for picture in pictures)
    width = sum(picture.shape[1] for picture in pictures) + gap * (len(pictures) - 1)
    sheet = canvas(height + (LINE_HEIGHT if captions else 0), width)
    lefts = np.cumsum([0, *(picture.shape[1] + gap for picture in pictures)])
    for picture, left in zip(pictures, lefts, strict=False):
        sheet[: picture.shape[0], left : left + picture.shape[1]] = picture
    texts = [((int(left) + 3, height + 3), text) for left, text in zip(lefts, captions, strict=False)]
    return write_texts(sheet, texts)


def encode_png(picture: UInt8[np.ndarray, "H W c"], text: Mapping[str, str] | None = None) -> bytes:
    """Encodes a picture as PNG, with texts by their keywords; c is 3, or 4 with opacity."""
    buffer, chunks = io.BytesIO(), PngInfo()
    for keyword, value in (text or {}).items():
        # A command's argument may hold bytes that are not text.
        chunks.add_text(keyword, value.encode("utf-8", "replace").decode())
    Image.fromarray(picture).save(buffer, format="PNG", pnginfo=chunks)
    return buffer.getvalue()


def canvas(height: int, width: int) -> UInt8[np.ndarray, "height width 3"]:
    """Returns a dark picture to draw on."""
    return np.full((height, width, 3), _BACKGROUND, np.uint8)


def write_texts(picture: UInt8[np.ndarray, "H W 3"], texts) -> UInt8[np.ndarray, "H W 3"]:
    """Writes lines of text, each at its place (x, y)."""
    if not texts:
        return picture
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default()
    for place, text in texts:
        draw.text(place, text, fill=_INK, font=font)
    return np.array(image)


def figures_line(generation: Any) -> str:
    """Returns a generation's figures in one line."""
    run = generation.statistics
    parts = [f"{run.pictures} picture{'s' * (run.pictures != 1)}"]
    if generation.pictures is not None:
        parts[0] += " of {1} x {0} pixels".format(*generation.pictures.shape[1:3])
    parts += [
        f"{run.tokens} tokens in {run.rounds} rounds ({run.step_compression:.2f} per round)",
        f"{run.seconds:.2f} s",
    ]
    if run.substituted:
        parts.append(f"{run.substituted:.1%} substituted")
    if run.speedup is not None:
        parts.append(f"{run.speedup:.2f}x as fast as plain decoding, {run.same_tokens:.1%} the same tokens")
    return ", ".join(parts)


def as_html(generation: Any) -> str:
    """Returns HTML of pictures with their prompts, and the line of figures below; it loads nothing."""
    figures = f"<p>{html.escape(figures_line(generation))}</p>"
    if generation.pictures is None:
        return figures
    shown = zip(generation.pictures[:MOST_PICTURES], generation.prompts, strict=False)
    cells = "".join(_cell(encode_png(picture), prompt) for picture, prompt in shown)
    left = len(generation.pictures) - MOST_PICTURES
    more = f"<p>and {left} more</p>" if left > 0 else ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:8px">{cells}</div>{more}{figures}'


def _cell(picture: bytes, prompt: str) -> str:
    text = html.escape(prompt)
    data = base64.b64encode(picture).decode()
    return (
        f'<figure style="margin:0;max-width:256px"><img alt="{text}" style="width:100%" '
        f'src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
    )
