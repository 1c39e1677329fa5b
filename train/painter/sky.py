"""Skies: gradient, sun or moon with its glow, stars and clouds, for each time of day and kind of weather."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from train.painter.painting import CANVAS, X, Y, fractal, mix, rgb, smoothstep


@dataclass(frozen=True)
class Palette:
    """Colours of a time of day, float32 [3] each; heights of the sun as fractions of the sky."""

    zenith: np.ndarray
    middle: np.ndarray
    horizon: np.ndarray
    sun: np.ndarray
    light: np.ndarray
    shade: np.ndarray
    haze: np.ndarray
    cloud_light: np.ndarray
    cloud_shade: np.ndarray
    grey: np.ndarray
    sun_height: tuple[float, float]
    sun_radius: float


PALETTES = {
    "dawn": Palette(
        zenith=rgb(0.46, 0.58, 0.82), middle=rgb(0.92, 0.74, 0.78), horizon=rgb(1.0, 0.90, 0.70),
        sun=rgb(1.0, 0.97, 0.84),
        light=rgb(1.02, 0.86, 0.76), shade=rgb(0.42, 0.40, 0.56), haze=rgb(0.93, 0.80, 0.80),
        cloud_light=rgb(1.0, 0.90, 0.84), cloud_shade=rgb(0.70, 0.60, 0.72), grey=rgb(0.85, 0.80, 0.83),
        sun_height=(0.55, 0.78), sun_radius=0.040,
    ),
    "noon": Palette(
        zenith=rgb(0.13, 0.40, 0.80), middle=rgb(0.38, 0.66, 0.93), horizon=rgb(0.80, 0.91, 0.97),
        sun=rgb(1.0, 1.0, 0.93),
        light=rgb(1.05, 1.03, 0.96), shade=rgb(0.40, 0.48, 0.60), haze=rgb(0.74, 0.85, 0.94),
        cloud_light=rgb(1.0, 1.0, 1.0), cloud_shade=rgb(0.60, 0.68, 0.78), grey=rgb(0.83, 0.87, 0.90),
        sun_height=(0.12, 0.25), sun_radius=0.045,
    ),
    "dusk": Palette(
        zenith=rgb(0.20, 0.14, 0.38), middle=rgb(0.74, 0.27, 0.36), horizon=rgb(1.0, 0.58, 0.18),
        sun=rgb(1.0, 0.86, 0.45),
        light=rgb(0.98, 0.56, 0.36), shade=rgb(0.22, 0.14, 0.27), haze=rgb(0.82, 0.42, 0.34),
        cloud_light=rgb(1.0, 0.58, 0.35), cloud_shade=rgb(0.38, 0.19, 0.35), grey=rgb(0.56, 0.42, 0.54),
        sun_height=(0.55, 0.78), sun_radius=0.055,
    ),
    "night": Palette(
        zenith=rgb(0.03, 0.05, 0.17), middle=rgb(0.08, 0.14, 0.34), horizon=rgb(0.20, 0.31, 0.52),
        sun=rgb(0.95, 0.95, 0.88),
        light=rgb(0.48, 0.58, 0.86), shade=rgb(0.11, 0.15, 0.30), haze=rgb(0.17, 0.26, 0.45),
        cloud_light=rgb(0.42, 0.50, 0.70), cloud_shade=rgb(0.10, 0.15, 0.30), grey=rgb(0.22, 0.28, 0.41),
        sun_height=(0.15, 0.40), sun_radius=0.050,
    ),
}  # fmt: skip


def paint_sky(rng: Generator, time: str, weather: str, base: float, side: float):
    """Paints the whole sky.

    Returns:
      (image [S, S, 3], haze [3] the colour of distance, sun (x, y) as fractions of the picture).
    """
    palette = PALETTES[time]
    dull = {"clear": 0.0, "cloudy": 0.12, "foggy": 0.48, "snowy": 0.75}[weather]
    height = np.clip(Y / base, 0.0, 1.0) + 0.02 * fractal(rng, 1.9, stretch=3.0)
    tint = rng.uniform(-0.03, 0.03, 3).astype(np.float32)
    image = mix(
        np.broadcast_to(palette.zenith + tint, (CANVAS, CANVAS, 3)),
        palette.middle,
        smoothstep(0.0, 0.68, height),
    )
    image = mix(image, palette.horizon, smoothstep(0.45, 1.05, height))
    grey = palette.grey * np.float32(0.90 if weather == "snowy" else 1.0)
    image = mix(image, grey, dull)
    haze = palette.haze + (grey - palette.haze) * np.float32(dull)

    sun = (0.5 + side * rng.uniform(0.10, 0.34), base * rng.uniform(*palette.sun_height))
    away = np.hypot(X - sun[0], Y - sun[1])
    if time == "night" and weather in ("clear", "cloudy"):
        image = _stars(rng, image)
    strength = {"clear": 1.0, "cloudy": 0.85, "foggy": 0.55, "snowy": 0.25}[weather]
    reach = {"dawn": 0.30, "noon": 0.18, "dusk": 0.32, "night": 0.14}[time]
    image = mix(image, palette.sun, 0.62 * strength * np.exp(-((away / reach) ** 1.3)))
    disc = np.clip(
        (palette.sun_radius - away) * CANVAS / (1.0 if weather == "clear" else 2.0) + 0.5, 0.0, 1.0
    )
    if time == "night" and rng.random() < 0.6:
        bite = np.hypot(X - sun[0] + 0.022 * side, Y - sun[1] + 0.010)
        disc = disc * np.clip((bite - palette.sun_radius * 0.92) * CANVAS + 0.5, 0.0, 1.0)
    image = mix(image, palette.sun, disc * strength)

    if weather == "cloudy":
        image = _clouds(rng, image, palette, base, sun, rng.uniform(-0.35, -0.05), 1.0)
    elif weather == "clear" and rng.random() < 0.5:
        image = _wisps(rng, image, palette, base)
    elif weather == "snowy":
        image = _clouds(rng, image, palette, base, sun, rng.uniform(-0.9, -0.5), 0.35)
    return image, haze.astype(np.float32), sun


def _stars(rng: Generator, image: np.ndarray) -> np.ndarray:
    cover = np.zeros((CANVAS, CANVAS), np.float32)
    for row, column in rng.integers(1, CANVAS - 2, (40, 2)):
        bright = rng.uniform(0.35, 1.0)
        cover[row : row + 2, column : column + 2] = bright
    milky = fractal(rng, 1.6, low=2)
    image = mix(image, rgb(0.30, 0.32, 0.50), 0.22 * smoothstep(0.0, 2.0, milky) * smoothstep(0.55, 0.1, Y))
    return mix(image, rgb(0.96, 0.96, 1.0), cover * 0.9)


def _perspective(noise: np.ndarray, base: float) -> np.ndarray:
    """Squeezes a texture towards the horizon at `base`, like a layer of clouds overhead."""
    rows = (4.0 - 1.4 / (np.clip(base - Y[:, 0], 0.0, 1.0) + 0.63)) * CANVAS
    whole = np.floor(rows).astype(int)
    part = (rows - whole)[:, None]
    return noise[whole % CANVAS] * (1.0 - part) + noise[(whole + 1) % CANVAS] * part


def _clouds(rng, image, palette: Palette, base: float, sun, threshold: float, contrast: float) -> np.ndarray:
    """Paints heaped clouds, bright towards the sun, where the noise exceeds a threshold."""
    density = _perspective(fractal(rng, 1.55, stretch=1.7, low=2), base)
    toward = int(np.sign(sun[0] - 0.5)) * 3
    shifted = np.roll(density, (3, -toward), (0, 1))
    cover = smoothstep(threshold, threshold + 0.75, density)
    lit = np.clip(0.52 + 0.55 * (density - shifted) - 0.16 * (density - threshold - 0.6), 0.0, 1.0)
    away = np.hypot(X - sun[0], Y - sun[1])
    lit = lit + 0.35 * np.exp(-((away / 0.25) ** 2)) * (1.0 - cover * 0.6)
    colour = (
        palette.cloud_shade + (palette.cloud_light - palette.cloud_shade) * np.clip(lit, 0.0, 1.0)[..., None]
    )
    if contrast < 1.0:
        colour = palette.grey + (colour - palette.grey) * contrast
    return mix(image, colour, cover * 0.94)


def _wisps(rng: Generator, image: np.ndarray, palette: Palette, base: float) -> np.ndarray:
    thin = _perspective(fractal(rng, 1.5, stretch=5.0, low=2), base)
    return mix(image, palette.cloud_light, 0.45 * smoothstep(0.9, 2.2, thin))
