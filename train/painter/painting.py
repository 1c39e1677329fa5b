"""Brushes of the procedural landscapes: a square canvas, band-limited noise, soft masks, polygons and puffs.

Positions are fractions of the canvas' side, x to the right, y downwards; colours are float32 in [0, 1]. No random
number depends on the side, so a picture is the same at any side, with more or less detail. Axis letters: S the side of
the canvas, R C the rows and columns of a part of it, P points or puffs.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.random import Generator

# Frequencies of noise, in cycles per picture, stay below this, so that the smallest canvas shows them.
BAND = 64

# The side of what one token shows.
CELL = 1 / 16

# How far outside of all puffs depth is cut off, and the steps per side in which depth is counted.
_OUTSIDE, _STEPS = 0.03, 1 << 18

# Kinds of noise that a picture needs: (slope of the amplitude, stretch along x, lowest frequency).
_TEXTURES = {
    "soft": (1.9, 1.0, 2.0),
    "rough": (1.9, 1.0, 5.0),
    "grain": (1.8, 2.6, 4.0),
    "wave": (1.8, 6.0, 6.0),
    "tall": (1.8, 0.28, 4.0),
    "rain": (1.2, 0.10, 5.0),
}


class Canvas:
    """A square picture that is painted in place.

    Attributes:
      image: float32 [S, S, 3].
      x, y: the pixels' centres, float32 [1, S] and [S, 1].
    """

    def __init__(self, side: int, key: tuple[int, ...]):
        self.side = side
        self.image = np.zeros((side, side, 3), np.float32)
        centres = (np.arange(side, dtype=np.float32) + 0.5) / side
        self.x, self.y = centres[None, :], centres[:, None]
        self._key, self._fields = key, {}

    def texture(self, kind: str, rng: Generator) -> np.ndarray:
        """Returns periodic noise of a kind, float32 [S, S], mean 0 and variance about 1, shifted at random.

        A picture has one field of each kind; shifted, it serves many times for the price of one.
        """
        if kind not in self._fields:
            # From a sequence of its own, so that it does not matter who asks first.
            own = np.random.default_rng((*self._key, list(_TEXTURES).index(kind)))
            self._fields[kind] = noise(own, self.side, *_TEXTURES[kind])
        shift = rng.integers(0, BAND, 2) * self.side // BAND
        return np.roll(self._fields[kind], shift, (0, 1))

    def rows(self, top: float, bottom: float = 1.0) -> slice:
        """Returns the rows between two heights, one more on each side, at least one."""
        first = min(max(int(top * self.side) - 1, 0), self.side - 1)
        return slice(first, max(min(int(np.ceil(bottom * self.side)) + 1, self.side), first + 1))

    def columns(self, left: float, right: float) -> slice:
        return self.rows(left, right)

    def line(self, rng: Generator, slope: float, low: float = 1.0, high: float = BAND) -> np.ndarray:
        """Returns a fractal line over the columns, float32 [S], deviation 1, frequencies from `low` to `high`."""
        frequency = np.arange(2 * BAND) / 2
        band = (frequency >= low / 2) & (frequency <= high)
        amplitude = np.where(band, np.maximum(frequency, 0.5) ** -slope, 0.0) * rng.rayleigh(size=2 * BAND)
        phase = 2 * np.pi * rng.random(2 * BAND) + np.pi * frequency / self.side
        values = np.fft.irfft(amplitude * np.exp(1j * phase), 2 * self.side)[: self.side]
        return ((values - values.mean()) / (values.std() + 1e-12)).astype(np.float32)

    def under(self, height: np.ndarray, rows: slice = slice(None), softness: float = 0.0) -> np.ndarray:
        """Returns the antialiased mask [R, S] of what lies under a line of heights [S], `softness` wide."""
        depth = self.y[rows] - height[None, :]
        return np.clip(depth / max(softness, 1 / self.side) + 0.5, 0.0, 1.0)

    def paint(self, colour, mask, rows: slice = slice(None), columns: slice = slice(None)) -> None:
        """Blends a colour ([3] or [R, C, 3]) over a part of the picture with an opacity (a number or [R, C])."""
        part = self.image[rows, columns]
        part += (colour - part) * (mask[..., None] if isinstance(mask, np.ndarray) else np.float32(mask))

    def polygon(self, points: Sequence[tuple[float, float]], colour, opacity: float = 1.0) -> None:
        """Paints a convex polygon, its corners in clockwise order as seen."""
        across, down = zip(*points, strict=True)
        rows, columns = self.rows(min(down), max(down)), self.columns(min(across), max(across))
        x, y = self.x[:, columns], self.y[rows]
        inside = np.float32(1.0)
        for (x0, y0), (x1, y1) in pairwise([*points, points[0]]):
            length = max(math.hypot(x1 - x0, y1 - y0), 1e-6)
            right, low = (x1 - x0) / length, (y1 - y0) / length
            inside = np.minimum(inside, float(right) * y - float(low) * x - float(right * y0 - low * x0))
        self.paint(colour, np.clip(inside * self.side + 0.5, 0.0, 1.0) * np.float32(opacity), rows, columns)

    def stroke(self, points: Sequence[tuple[float, float]], width: float, colour, opacity: float = 1.0):
        """Paints a line of rounded segments through points, `width` wide."""
        corners = np.array(points, np.float32)
        pad = width + 2 / self.side
        rows = self.rows(corners[:, 1].min() - pad, corners[:, 1].max() + pad)
        columns = self.columns(corners[:, 0].min() - pad, corners[:, 0].max() + pad)
        x, y = self.x[:, columns], self.y[rows]
        away = np.full((y.shape[0], x.shape[1]), 9.0, np.float32)
        for (x0, y0), (x1, y1) in pairwise(corners):
            dx, dy = float(x1 - x0), float(y1 - y0)
            along = ((x - x0) * dx + (y - y0) * dy) / max(dx * dx + dy * dy, 1e-12)
            along = np.clip(along, 0.0, 1.0)
            away = np.minimum(away, np.hypot(x - x0 - along * dx, y - y0 - along * dy))
        mask = np.clip((width / 2 - away) * self.side + 0.5, 0.0, 1.0)
        self.paint(colour, mask * np.float32(opacity), rows, columns)

    def glow(self, x: float, y: float, wide: float, high: float, colour, opacity: float) -> None:
        """Paints a soft ellipse whose opacity falls like a Gaussian."""
        rows, columns = (
            self.rows(y - 2.4 * high, y + 2.4 * high),
            self.columns(x - 2.4 * wide, x + 2.4 * wide),
        )
        falls = np.exp(-(((self.x[:, columns] - x) / wide) ** 2)) * np.exp(
            -(((self.y[rows] - y) / high) ** 2)
        )
        self.paint(colour, falls * np.float32(opacity), rows, columns)

    def discs(self, x, y, radius) -> np.ndarray:
        """Returns the coverage [S, S] of small antialiased discs, arrays [P] each."""
        return np.clip(self.puffs(x, y, radius)[0] * self.side + 0.5, 0.0, 1.0)

    def puffs(self, x, y, radius, tint=0) -> tuple[np.ndarray, np.ndarray]:
        """Returns the relief of round puffs, arrays [P] each.

        Returns:
          (float32 [S, S], int32 [S, S]): how far a pixel lies inside the highest puff there (a paraboloid whose slope
          is a sphere's normal; negative outside), and that puff's `tint` (int [P], from 0 to 255).
        """
        side = self.side
        x, y, radius = (np.asarray(values, np.float32) for values in (x, y, radius))
        tint = np.broadcast_to(np.asarray(tint, np.int32), x.shape)
        pad = 2 * (int(np.ceil(radius.max() * side)) + 1)
        wide = side + 2 * pad
        relief = np.zeros(wide * wide, np.int32)
        # Small ones by themselves: every puff of a pass takes as many pixels as the largest.
        large = radius > 0.5 * radius.max()
        for part in (large, ~large):
            if part.any():
                self._heap(relief, pad, x[part], y[part], radius[part], tint[part])
        inner = slice(pad, pad + side)
        relief = relief.reshape(wide, wide)[inner, inner]
        return (relief >> 8).astype(np.float32) / _STEPS - np.float32(_OUTSIDE), relief & 255

    def _heap(self, relief: np.ndarray, pad: int, x, y, radius, tint) -> None:
        """Raises a relief, int32 [(S + 2 pad) ** 2] of depth and tint, by puffs, arrays [P] each."""
        side = self.side
        x, y, radius = x[:, None, None], y[:, None, None], radius[:, None, None]
        reach = int(np.ceil(radius.max() * side)) + 1
        span = np.arange(-reach, reach + 1)
        row = np.clip((y * side).astype(np.int32), -reach, side + reach - 1) + span[:, None]
        column = np.clip((x * side).astype(np.int32), -reach, side + reach - 1) + span[None, :]
        away = ((column.astype(np.float32) + 0.5) / side - x) ** 2 + (
            (row.astype(np.float32) + 0.5) / side - y
        ) ** 2
        depth = (radius * radius - away) / (2 * radius)
        # One integer holds depth and tint, so that one pass finds both.
        key = ((np.maximum(depth, -_OUTSIDE) + _OUTSIDE) * _STEPS).astype(np.int32) << 8
        key |= tint[:, None, None]
        np.maximum.at(relief, ((row + pad) * (side + 2 * pad) + column + pad).ravel(), key.ravel())


@lru_cache(maxsize=32)
def _spectrum(side: int, slope: float, stretch: float, low: float) -> np.ndarray:
    """Returns the amplitudes of noise, complex64 [2 BAND - 1, BAND], moved to the pixels' centres."""
    fy = np.fft.fftfreq(2 * BAND - 1, 1 / (2 * BAND - 1))[:, None]
    fx = np.arange(BAND)[None, :]
    radius = np.sqrt((fx * stretch) ** 2 + fy**2)
    # Below `low` the spectrum is flat, so that no single blob dominates the whole picture.
    amplitude = np.where(radius > 0, np.maximum(radius, low) ** -slope, 0.0)
    # Fades out before it ends: no ringing.
    amplitude *= np.clip((BAND - np.maximum(fx, abs(fy))) / (BAND / 4), 0.0, 1.0)
    amplitude /= np.sqrt((amplitude**2 * np.where(fx > 0, 4.0, 2.0)).sum())
    return (amplitude * np.exp(1j * np.pi * (fx + fy) / side)).astype(np.complex64)


def noise(rng: Generator, side: int, slope: float, stretch: float = 1.0, low: float = 1.0) -> np.ndarray:
    """Returns periodic fractal noise, float32 [S, S], mean 0, variance about 1: the same field at any side.

    The amplitude falls as frequency ** -slope (1 rough, 2 smooth); `stretch` > 1 elongates the pattern along
    x, < 1 along y; frequencies below `low` cycles are not stronger than those at `low`.
    """
    white = rng.standard_normal((2 * BAND - 1, BAND, 2), dtype=np.float32).view(np.complex64)[..., 0]
    white = white * _spectrum(side, slope, stretch, low)
    whole = np.zeros((side, BAND), np.complex64)
    whole[:BAND], whole[1 - BAND :] = white[:BAND], white[BAND:]
    columns = np.fft.ifft(whole, axis=0, norm="forward")
    return np.fft.irfft(columns, side, axis=1, norm="forward").astype(np.float32)


def smoothstep(low: float, high: float, values: np.ndarray) -> np.ndarray:
    """Returns values of any shape as shares: 0 up to `low`, 1 from `high` on (or vice versa), smooth between."""
    t = np.clip((values - low) * np.float32(1 / (high - low)), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def on_grid(place, step: float = CELL / 2, start: float = 0.0):
    """Moves a place, a number or an array, to the nearest multiple of `step`, counted from `start`.

    What is smaller than a few cells of the tokenizer stands on such a grid, so that a few codes show all of it.
    """
    return np.round((place - start) / step) * step + start


def dotted(place):
    """Moves places of dots, a number or an array, into the middle of the quarter of a cell that they are in."""
    return on_grid(place, CELL / 2, CELL / 4)


def mix(first, second, share):
    """Returns the colours between two, by a share that is a number or an array of pixels."""
    return first + (second - first) * (
        share[..., None] if isinstance(share, np.ndarray) else np.float32(share)
    )


def rgb(*values: float) -> np.ndarray:
    """Returns a colour, float32 [3]."""
    return np.array(values, dtype=np.float32)
