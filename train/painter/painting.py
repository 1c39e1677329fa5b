"""Brushes of the procedural landscapes: fractal noise, soft masks, blending and rows of trees.

Everything works on a square canvas of `CANVAS` pixels; positions are fractions of its side, x to the right, y
downwards, and colours are float32 in [0, 1]. Axis letters: S the side of the canvas.
"""

from functools import lru_cache

import numpy as np
from numpy.random import Generator

CANVAS = 128

Y = ((np.arange(CANVAS, dtype=np.float32) + 0.5) / CANVAS)[:, None]
X = ((np.arange(CANVAS, dtype=np.float32) + 0.5) / CANVAS)[None, :]


@lru_cache(maxsize=64)
def _spectrum(slope: float, stretch: float, low: float) -> np.ndarray:
    fy = np.fft.fftfreq(CANVAS, 1 / CANVAS)[:, None]
    fx = np.fft.rfftfreq(CANVAS, 1 / CANVAS)[None, :]
    radius = np.sqrt((fx * stretch) ** 2 + fy**2)
    # Below `low` cycles per picture the spectrum is flat, so that no single blob decides the whole picture.
    amplitude = np.where(radius > 0, np.maximum(radius, low) ** -slope, 0.0)
    twice = np.where((fx > 0) & (fx < CANVAS // 2), 2.0, 1.0)
    amplitude /= np.sqrt((amplitude**2 * twice).sum() * 2) / CANVAS**2
    return amplitude.astype(np.float32)


def fractal(rng: Generator, slope: float, stretch: float = 1.0, low: float = 1.0) -> np.ndarray:
    """Returns periodic fractal noise, float32 [S, S], mean 0, variance about 1.

    The amplitude falls as frequency ** -slope (1 rough, 2 smooth); `stretch` > 1 elongates the pattern along
    x, < 1 along y; frequencies below `low` cycles are not stronger than those at `low`.
    """
    amplitude = _spectrum(slope, stretch, low)
    white = rng.standard_normal((2, *amplitude.shape), dtype=np.float32)
    return np.fft.irfft2((white[0] + 1j * white[1]) * amplitude, s=(CANVAS, CANVAS)).astype(np.float32)


def line(rng: Generator, slope: float, low: float = 1.0, high: float = CANVAS) -> np.ndarray:
    """Returns a fractal line over the columns, float32 [S], deviation 1, frequencies from `low` to `high`."""
    frequency = np.arange(CANVAS + 1, dtype=np.float32) / 2
    band = (frequency >= low / 2) & (frequency <= high)
    amplitude = np.where(band, np.maximum(frequency, 0.5) ** -slope, 0.0)
    phase = np.exp(2j * np.pi * rng.random(CANVAS + 1))
    values = np.fft.irfft(amplitude * phase * rng.rayleigh(size=CANVAS + 1))[:CANVAS]
    return ((values - values.mean()) / (values.std() + 1e-9)).astype(np.float32)


def smoothstep(low: float, high: float, values: np.ndarray) -> np.ndarray:
    t = np.clip((values - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def below(height: np.ndarray, softness: float = 1.0) -> np.ndarray:
    """Returns the antialiased mask [S, S] of the pixels under a line of heights [S]; `softness` in pixels."""
    return np.clip((Y - height[None, :]) * (CANVAS / softness) + 0.5, 0.0, 1.0)


def mix(image: np.ndarray, colour: np.ndarray, mask: np.ndarray | float) -> np.ndarray:
    """Blends `colour` ([S, S, 3] or [3]) over `image` [S, S, 3] with opacity `mask` ([S, S] or a number)."""
    opacity = np.asarray(mask, dtype=np.float32)
    if opacity.ndim == 2:
        opacity = opacity[..., None]
    return image + (colour - image) * opacity


def rgb(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def tree_row(
    rng: Generator,
    base: np.ndarray,
    height: float,
    spacing: float,
    kind: str,
    density: float = 1.0,
    gap: float = 0.0,
):
    """Returns a row of trees standing on a line.

    Args:
      base: y of the feet, float32 [S].
      height: typical height of a tree, a fraction of the picture.
      spacing: typical distance between neighbours.
      kind: "conifer" (tiers of branches under a point) or "round" (a crown on a short trunk).
      density: probability that a place in the row has a tree.
      gap: width of the treeless middle of the row.
    Returns:
      (mask [S, S], light [S, S]): coverage, and -1 on the left of the crowns to 1 on their right.
    """
    count = int(np.ceil(1 / spacing)) + 4
    centre = (np.arange(count) - 2 + 0.5 + rng.uniform(-0.4, 0.4, count)) * spacing
    size = height * rng.uniform(0.6, 1.15, count) * (rng.random(count) < density)
    size = size * (np.abs(centre - 0.5) >= gap / 2)
    phase = rng.random(count)
    column = np.floor(X[0] / spacing).astype(int) + 2
    mask = np.zeros((CANVAS, CANVAS), np.float32)
    light = np.zeros((CANVAS, CANVAS), np.float32)
    feet = base[np.clip((centre * CANVAS).astype(int), 0, CANVAS - 1)]
    top = max(int((base.min() - 1.2 * height) * CANVAS) - 1, 0)
    bottom = min(int(base.max() * CANVAS) + 3, CANVAS)
    rows = slice(top, max(bottom, top + 1))
    y = Y[rows]
    for offset in (-1, 1, 0):
        tree = column + offset
        tall = np.maximum(size[tree], 1e-4).astype(np.float32)[None, :]
        dx = (X[0] - centre[tree]).astype(np.float32)[None, :]
        down = (y - (feet[tree][None, :].astype(np.float32) - tall)) / tall
        if kind == "conifer":
            tier = np.mod(down * 5.0 + phase[tree].astype(np.float32)[None, :], 1.0)
            half = tall * np.clip(down, 0.0, 1.0) * (0.17 + 0.13 * tier)
            inside = (down > 0) & (down < 1.05)
        else:
            crown = (down - 0.42) / 0.42
            half = 0.42 * tall * np.sqrt(np.maximum(1.0 - crown * crown, 0.0))
            half = np.where((down > 0.8) & (down < 1.05), np.maximum(half, 0.05 * tall), half)
            inside = (down > 0) & (down < 1.05)
        cover = np.clip((half - np.abs(dx)) * CANVAS + 0.5, 0.0, 1.0) * inside * (tall > 1e-3)
        light[rows] = np.where(cover > 0.3, np.clip(dx / (half + 1e-3), -1, 1), light[rows])
        mask[rows] = np.maximum(mask[rows], cover)
    return mask, light
