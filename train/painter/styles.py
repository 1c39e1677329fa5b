"""Styles: what a finished picture looks like in watercolour, ink, as a poster or as pixel art."""

import numpy as np
from numpy.random import Generator

from train.painter.painting import Canvas, mix, rgb, smoothstep

PAPER = rgb(0.98, 0.965, 0.93)
_GREY = rgb(0.299, 0.587, 0.114)


def apply_style(canvas: Canvas, rng: Generator, style: str) -> None:
    """Repaints the whole picture in a style other than "plain"."""
    canvas.image[:] = {
        "watercolour": _watercolour, "ink": _ink, "poster": _poster, "pixel art": _pixel_art,
    }[style](canvas, rng, np.clip(canvas.image, 0.0, 1.0))  # fmt: skip


def _box(image: np.ndarray, width: float) -> np.ndarray:
    """Averages over squares, `width` of the side wide, parts of pixels included; the edges repeat."""
    pixels = max(width * len(image), 1.0)
    reach = int((pixels + 1) / 2) + 1
    # The sum up to a place within a pixel lies between the sums up to its edges.
    whole, part = divmod(reach + 0.5 - pixels / 2, 1.0)
    for axis in (0, 1):
        pad = [(0, 0)] * image.ndim
        pad[axis] = (reach + 1, reach)
        total = np.moveaxis(np.cumsum(np.pad(image, pad, mode="edge"), axis, dtype=np.float32), axis, 0)
        size, near, far = image.shape[axis], int(whole), 2 * reach - int(whole)
        low = total[near : near + size] * np.float32(1 - part) + total[
            near + 1 : near + 1 + size
        ] * np.float32(part)
        high = total[far : far + size] * np.float32(part) + total[far + 1 : far + 1 + size] * np.float32(
            1 - part
        )
        image = np.moveaxis((high - low) * np.float32(1 / pixels), 0, axis)
    return image


def _steepness(field: np.ndarray) -> np.ndarray:
    """Returns how much a field [S, S] changes along a side, measured over the same distance at any S."""
    step = len(field) // 128
    wide = np.pad(field, step, mode="edge")
    inner, far = slice(step, -step), slice(2 * step, None)
    change = np.hypot(
        wide[far, inner] - wide[: -2 * step, inner], wide[inner, far] - wide[inner, : -2 * step]
    )
    return change * np.float32(len(field) / (2 * step))


def _spread(image: np.ndarray, most: float = 1.7) -> np.ndarray:
    """Returns a picture with the tones of fog or storm spread: a style with few tones needs more of each."""
    low, high = np.quantile(image[::4, ::4] @ _GREY, (0.02, 0.98))
    middle, gain = (low + high) / 2, np.clip(0.62 / (high - low), 1.0, most)
    centre = middle + (np.clip(middle, 0.30, 0.58) - middle) * (gain - 1.0) / 0.7
    return np.clip(np.float32(centre) + (image - np.float32(middle)) * np.float32(gain), 0.0, 1.0)


def _frame(canvas: Canvas, width: float, wobble) -> np.ndarray:
    """Returns the mask [S, S] of what lies within a margin of a width."""
    inset = np.minimum(np.minimum(canvas.x, 1 - canvas.x), np.minimum(canvas.y, 1 - canvas.y)) + wobble
    return np.clip((inset - width) * canvas.side + 0.5, 0.0, 1.0).astype(np.float32)


def _watercolour(canvas: Canvas, rng: Generator, image: np.ndarray) -> np.ndarray:
    """Lays thin washes with dark rims on white paper that stays free around them."""
    washes = _box(_box(image, 0.008), 0.008)
    washes = _spread(washes)
    bloom = canvas.texture("soft", rng)
    tone = washes @ _GREY
    steps = tone * 7 + 0.22 * bloom
    level = np.floor(steps) + smoothstep(0.25, 0.75, steps - np.floor(steps))
    washes = washes * ((level / 7 + 0.06) / (tone + 0.06))[..., None]
    grey = (washes @ _GREY)[..., None]
    washes = grey + (washes - grey) * 1.25
    washes = 1.0 - (1.0 - washes) * (0.80 + 0.08 * bloom[..., None])
    rim = np.abs(_box(image @ _GREY, 0.020) - tone)
    washes = washes - 0.9 * np.minimum(rim, 0.14)[..., None]
    inside = _frame(canvas, 0.055, 0.014 * bloom + 0.004 * canvas.texture("rough", rng))
    near_edge = inside * (1 - _frame(canvas, 0.068, 0.014 * bloom))
    washes = washes * (1.0 - 0.14 * near_edge[..., None])
    return mix(PAPER, washes, inside)


def _ink(canvas: Canvas, rng: Generator, image: np.ndarray) -> np.ndarray:
    """Paints washes of grey ink on warm paper, dark contours, and the painter's red seal."""
    fine = _box(image @ _GREY, 0.010)
    soft = _box(_box(fine, 0.012), 0.012)
    low, high = np.quantile(soft[::4, ::4], (0.03, 0.85))
    bloom = canvas.texture("soft", rng)
    # At night the paper itself is dark.
    high = max(float(high), 0.42)
    tone = np.clip((soft - low) / max(high - low, 0.22), 0.0, 1.0) ** 0.85
    steps = tone * 4 + 0.10 * bloom
    level = np.clip((np.floor(steps) + smoothstep(0.2, 0.8, steps - np.floor(steps))) / 4, 0.0, 1.0)
    steep = _steepness(fine) / np.float32(256 * max(high - low, 0.22))
    contour = smoothstep(0.06, 0.26, steep) * (0.8 + 0.2 * np.tanh(bloom))
    ink, paper = rgb(0.14, 0.14, 0.16), PAPER * rgb(1.0, 0.985, 0.95)
    picture = mix(ink, paper, (0.10 + 0.90 * level) * (1.0 - 0.8 * contour))
    inside = _frame(canvas, 0.03, 0.0)
    canvas.image[:] = mix(paper, picture, inside)
    canvas.polygon([(0.87, 0.85), (0.945, 0.85), (0.945, 0.945), (0.87, 0.945)], rgb(0.78, 0.14, 0.12))
    for y in (0.875, 0.897, 0.920):
        canvas.stroke([(0.885, y), (0.930, y)], 0.008, PAPER)
    canvas.stroke([(0.9075, 0.866), (0.9075, 0.930)], 0.008, PAPER)
    return canvas.image


def _poster(canvas: Canvas, rng: Generator, image: np.ndarray) -> np.ndarray:
    """Prints flat areas of few strong colours inside a cream frame."""
    tone = _box(image @ _GREY, 0.010)
    low, high = np.quantile(tone[::4, ::4], (0.02, 0.98))
    steps = np.clip((tone - low) / max(high - low, 0.15), 0.0, 1.0) * 5.0
    level = (np.floor(steps) + smoothstep(0.75, 1.0, steps - np.floor(steps))) / 5.0
    around = _box(_box(image, 0.03), 0.03)
    near = _box(image, 0.010)
    colour = mix(around / ((around @ _GREY)[..., None] + 0.02), near / (tone[..., None] + 0.02), 0.6)
    low, high = 0.55 * low, high + 0.5 * (0.97 - high)
    colour = colour * (low + level * (high - low))[..., None]
    grey = (colour @ _GREY)[..., None]
    colour = np.clip(grey + (colour - grey) * 1.35, 0.0, 1.0)
    return mix(rgb(0.96, 0.92, 0.80), colour, _frame(canvas, 0.05, 0.0))


def _pixel_art(canvas: Canvas, rng: Generator, image: np.ndarray) -> np.ndarray:
    """Paints in 64 x 64 squares of few colours."""
    grid = 64
    block = canvas.side // grid
    small = _spread(image.reshape(grid, block, grid, block, 3).mean((1, 3)), 1.25)
    grey = (small @ _GREY)[..., None]
    small = np.clip(grey + (small - grey) * 1.3, 0.0, 1.0)
    # Steps are finer in the dark, where the eye tells more of them.
    small = (np.round(np.sqrt(small) * 9) / 9) ** 2
    return np.repeat(np.repeat(np.clip(small, 0, 1), block, 0), block, 1)
