"""Pictures as arrays: files, grids, pictures side by side, the acceptance overlay, PNG bytes with texts.

Pictures are uint8 [H, W, 3] or [n, H, W, 3]. Axes: n pictures, H W height and width, T tokens.
"""

import base64
import contextlib
import hashlib
import html
import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file

# Pillow knows others, which are programs (EPS) or rarely read.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# Suffixes of the files in a folder that are taken for pictures.
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
# In a notebook: a page with more is slow to scroll.
MOST_PICTURES = 64
_BACKGROUND = 18
_INK = (235, 235, 235)
_LINE_HEIGHT = 18
_TINT = 0.45
# Pixels of a token's cell in an overlay, about.
_CELL = 24
# Few accepted tokens are dark blue, many yellow: even steps of brightness, readable without red-green vision.
_RAMP = np.array([(48, 32, 96), (58, 82, 139), (33, 144, 141), (94, 201, 98), (253, 231, 37)], np.float32)


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


def read_image(file: BinaryIO) -> Image.Image:
    """Reads a whole picture; raises LanternError as ``open_image`` does, and for pixels that cannot be read."""
    with open_image(file) as image, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image.load()
        except Exception as error:
            raise LanternError(errors.short(error)) from error
    return image


def open_picture(file: Path) -> Image.Image:
    """Reads a whole picture; raises LanternError if that is not possible."""
    try:
        with open_file(file) as stream:
            return read_image(stream)
    except Exception as error:
        raise LanternError(
            f"{file}: not a readable picture ({errors.short(error)}); remove or replace it"
        ) from error


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
    canvas = _canvas(rows * (height + gap) - gap, columns * (width + gap) - gap)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        canvas[top : top + height, left : left + width] = picture
    return canvas


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
    canvas = _canvas(height + (_LINE_HEIGHT if captions else 0), width)
    lefts = np.cumsum([0, *(picture.shape[1] + gap for picture in pictures)])
    for picture, left in zip(pictures, lefts, strict=False):
        canvas[: picture.shape[0], left : left + picture.shape[1]] = picture
    texts = [((int(left) + 3, height + 3), text) for left, text in zip(lefts, captions, strict=False)]
    return _write_texts(canvas, texts)


def enlarge(picture: UInt8[np.ndarray, "H W 3"], scale: int) -> UInt8[np.ndarray, "sH sW 3"]:
    """Enlarges a picture ``scale`` times, smoothly."""
    height, width = picture.shape[:2]
    return np.asarray(
        Image.fromarray(picture).resize((width * scale, height * scale), Image.Resampling.BICUBIC)
    )


def columns_of(picture: UInt8[np.ndarray, "H W 3"], tokens: int) -> int:
    """Returns how many of a picture's tokens make a row, if their cells are squares."""
    height, width = picture.shape[:2]
    return max(1, round(math.sqrt(tokens * width / height)))


def accepted_by_round(round_of_token: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """Returns for every token the number of draft tokens its round accepted: all its tokens but the bonus token."""
    rounds = np.asarray(round_of_token)
    sizes = np.bincount(rounds, minlength=1)
    # Round 0 accepted nothing: its tokens are the prefill's or given ones.
    sizes[0] = 1
    return (sizes[rounds] - 1).astype(np.int32)


def draw_acceptance(
    picture: UInt8[np.ndarray, "H W 3"],
    round_of_token: Int[np.ndarray, " T"],
    columns: int,
    max_accepted: int,
) -> UInt8[np.ndarray, "OH OW 3"]:
    """Enlarges a picture and tints each token's cell by the number of draft tokens its round accepted.

    Lines separate the tokens of different rounds; a legend below shows the tints of 0 to ``max_accepted``.

    Args:
        round_of_token: as in ``Decoded``: tokens row by row, 0 for the prefill's token.
        columns: tokens per row; T must be a multiple of it.
        max_accepted: the tree's depth.

    Raises LanternError if T is not a multiple of ``columns`` or the sides are not multiples of the cells'.
    """
    rounds = np.asarray(round_of_token)
    rows = rounds.size // columns
    if rounds.size % columns or picture.shape[0] % rows or picture.shape[1] % columns:
        raise LanternError(
            f"{rounds.size} tokens in rows of {columns} do not divide a picture of {picture.shape[:2]} pixels"
        )
    large = enlarge(picture, max(1, round(_CELL * columns / picture.shape[1]))).astype(np.float32)
    cell_height, cell_width = large.shape[0] // rows, large.shape[1] // columns
    colours = _colours(max_accepted)
    accepted = np.clip(accepted_by_round(rounds), 0, max_accepted).reshape(rows, columns)
    tint = np.repeat(np.repeat(colours[accepted], cell_height, axis=0), cell_width, axis=1)
    mixed = (1 - _TINT) * _stretched_grey(large) + _TINT * tint
    begins = np.diff(rounds.reshape(rows, columns), axis=1, prepend=-1) != 0
    mixed[:, ::cell_width][np.repeat(begins, cell_height, axis=0)] = 0
    drawn = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return np.concatenate([drawn, _legend(drawn.shape[1], colours)])


def encode_png(picture: UInt8[np.ndarray, "H W c"], text: Mapping[str, str] | None = None) -> bytes:
    """Encodes a picture as PNG, with texts by their keywords; c is 3, or 4 with opacity."""
    buffer, chunks = io.BytesIO(), PngInfo()
    for keyword, value in (text or {}).items():
        # A command's argument may hold bytes that are not text.
        chunks.add_text(keyword, value.encode("utf-8", "replace").decode())
    Image.fromarray(picture).save(buffer, format="PNG", pnginfo=chunks)
    return buffer.getvalue()


def origin_text(
    prompt: str, seed: int, number: int, settings: Mapping[str, Any], tokens: Int[np.ndarray, " T"]
) -> dict[str, str]:
    """Returns the texts of a picture's PNG, for ``encode_png``: all that is needed to make it again, except a picture
    that it continues.

    Args:
        number: the picture's number, which with ``seed`` decides its randomness.
        settings: from ``settings_json``.
    """
    return {
        "Software": "lantern_jax",
        "prompt": prompt,
        "seed": str(seed),
        "number": str(number),
        "settings": json.dumps(settings),
        "tokens": tokens_digest(tokens),
    }


def tokens_digest(tokens: Int[np.ndarray, " T"]) -> str:
    """Returns the hexadecimal SHA-256 of a picture's codes as little-endian int32."""
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()


def _canvas(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), _BACKGROUND, np.uint8)


def _stretched_grey(picture: np.ndarray) -> np.ndarray:
    """Returns the picture in grey, stretched from black to white to show through a tint, float32 [H, W, 1]."""
    grey = picture.mean(axis=-1, keepdims=True)
    low, high = np.percentile(grey, (1, 99))
    return np.clip((grey - low) / max(high - low, 1.0), 0, 1) * 255


def _colours(max_accepted: int) -> np.ndarray:
    """Samples the ramp evenly, float32 [max_accepted + 1, 3]."""
    at = np.linspace(0, len(_RAMP) - 1, max_accepted + 1)
    low = np.minimum(at.astype(int), len(_RAMP) - 2)
    part = (at - low)[:, None].astype(np.float32)
    return (1 - part) * _RAMP[low] + part * _RAMP[low + 1]


def _legend(width: int, colours: np.ndarray) -> np.ndarray:
    """Draws a strip with a swatch for every accepted count."""
    strip = _canvas(_LINE_HEIGHT + 6, width)
    roomy = width >= 260
    texts = [((4, 6), "accepted per round")] if roomy else []
    side, left = 12, 100 if roomy else 4
    step = max(side + 2, min(34, (width - left) // len(colours)))
    for count, colour in enumerate(colours):
        at = left + count * step
        strip[6 : 6 + side, at : at + side] = np.rint(colour).astype(np.uint8)
        texts.append(((at + side + 3, 6), str(count)))
    return _write_texts(strip, texts)


def _write_texts(picture: np.ndarray, texts) -> np.ndarray:
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
