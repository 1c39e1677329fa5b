"""Water: a lake that mirrors what stands behind it, a winding river, the open sea."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from train.painter.painting import CANVAS, X, Y, below, fractal, line, mix, rgb, smoothstep
from train.painter.sky import Palette
from train.painter.terrain import Look, ground


def _mirror(rng: Generator, image: np.ndarray, shore: float, ripple: float) -> np.ndarray:
    """Mirrors the picture above y = `shore` below it, shaken by ripples that grow towards the viewer."""
    near = np.clip((Y - shore) / (1.0 - shore), 0.0, 1.0)
    waves = fractal(rng, 1.1, stretch=5.0, low=6) * (0.3 + near)
    rows = np.clip((2 * shore - Y) * CANVAS + waves * ripple * 2.0, 0, shore * CANVAS - 1).astype(int)
    columns = np.clip(X * CANVAS + waves * ripple, 0, CANVAS - 1).astype(int)
    return image[rows, columns]


def paint_lake(
    rng: Generator, image: np.ndarray, look: Look, palette: Palette, albedo: np.ndarray
) -> np.ndarray:
    """Paints a calm lake from just below the foot of the terrain to a near shore at the lower edge."""
    shore = look.base + 0.035
    mirrored = _mirror(rng, image, shore, 0.9)
    near = np.clip((Y - shore) / (1.0 - shore), 0.0, 1.0)
    deep = palette.zenith * 0.6 + palette.shade * 0.25
    water = mix(mirrored * 0.90, deep, 0.16 + 0.28 * near)
    glints = fractal(rng, 1.2, stretch=8.0, low=5)
    water = mix(water, palette.horizon, 0.26 * smoothstep(0.9, 2.2, glints))
    water = mix(
        water, palette.light * 0.9, 0.45 * np.exp(-(((Y - shore) * CANVAS / 1.2) ** 2)) * np.ones_like(X)
    )
    far = (shore + 0.006 * line(rng, 1.3, low=2, high=20)).astype(np.float32)
    image = mix(image, water, below(far))
    bank = 0.93 - 0.16 * np.abs(X[0] - rng.uniform(0.3, 0.7)) ** 1.5 + 0.012 * line(rng, 1.5, high=16)
    close = replace(look, base=0.85)
    return ground(rng, image, close, albedo * 0.85, bank.astype(np.float32))


def paint_river(rng: Generator, image: np.ndarray, look: Look, palette: Palette) -> np.ndarray:
    """Paints a river that winds and widens from the horizon to the lower edge, in the colours of the sky."""
    start = look.base + 0.012
    near = np.clip((Y - start) / (1.0 - start), 0.0, 1.0)
    swing = rng.choice((-1.0, 1.0)) * rng.uniform(0.16, 0.24)
    turn = np.sin(2.0 * np.pi * rng.uniform(1.0, 1.25) * near**0.62 + rng.uniform(-0.4, 0.4))
    centre = 0.5 + rng.uniform(-0.08, 0.08) + swing * turn * (0.25 + 0.75 * near)
    half = 0.012 + 0.17 * near**1.35
    edge = 0.010 * fractal(rng, 1.5, low=5) * (0.2 + near)
    inside = (half - np.abs(X - centre) + edge) * CANVAS
    cover = np.clip(inside + 0.5, 0.0, 1.0) * (start < Y)
    bank = np.clip((inside + 2.5 + 3.0 * near) / 3.0, 0.0, 1.0) * (start < Y)
    waves = fractal(rng, 1.2, stretch=4.0, low=5)
    sky = mix(
        np.broadcast_to(palette.horizon, image.shape),
        palette.middle,
        smoothstep(0.0, 0.55, near) * np.ones_like(X),
    )
    sky = mix(sky, palette.zenith, smoothstep(0.4, 1.1, near) * np.ones_like(X) * 0.75)
    water = mix(sky, look.haze, 0.35) * (0.93 + 0.07 * waves[..., None])
    water = mix(water, palette.light, 0.35 * smoothstep(1.0, 2.2, waves))
    image = mix(image, image * 0.62, bank)
    return mix(image, water, cover)


def paint_sea(rng: Generator, image: np.ndarray, look: Look, palette: Palette, sun) -> np.ndarray:
    """Paints open sea below the horizon: waves growing towards the viewer, foam, a path of light under the sun."""
    near = np.clip((Y - look.base) / (1.0 - look.base), 0.0, 1.0)
    mirrored = _mirror(rng, image, look.base, 1.6)
    deep = palette.zenith * 0.55 + palette.shade * rgb(0.20, 0.30, 0.36)
    water = mix(np.broadcast_to(deep, image.shape), mirrored, 0.50 - 0.30 * near * np.ones_like(X))
    water = mix(water, look.haze, 0.35 * (1.0 - near) ** 4 * np.ones_like(X))
    far = fractal(rng, 1.0, stretch=9.0, low=10)
    close = fractal(rng, 1.35, stretch=4.5, low=4)
    waves = far * (1.0 - near) + close * near
    water = water * (1.0 + (0.08 + 0.13 * near) * waves)[..., None]
    path = np.exp(-(((X - sun[0]) / (0.05 + 0.10 * near)) ** 2))
    water = mix(water, palette.sun, np.clip(path * smoothstep(-0.2, 1.4, waves) * 0.8, 0.0, 1.0))
    foam = smoothstep(1.35, 2.1, close) * smoothstep(0.25, 0.8, near)
    water = mix(water, palette.light * 0.92, foam * 0.75)
    return mix(image, water, below(np.full(CANVAS, look.base, np.float32)))
