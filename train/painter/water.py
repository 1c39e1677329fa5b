"""Water: a lake that mirrors what stands behind it, a winding river, the open sea, a waterfall."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from train.painter.light import SNOW, Light
from train.painter.painting import CELL, Canvas, mix, on_grid, rgb, smoothstep
from train.painter.plants import conifers
from train.painter.terrain import Land, ground, rock_face


def _mirrored(canvas: Canvas, rng: Generator, shore: float, ripple: float, rows: slice) -> np.ndarray:
    """Returns the picture above y = `shore` mirrored below it, shaken by ripples that grow towards the viewer."""
    side, y = canvas.side, canvas.y[rows]
    near = np.clip((y - shore) / (1.0 - shore), 0.0, 1.0)
    waves = canvas.texture("wave", rng)[rows] * (0.2 + near) * np.float32(ripple * side)
    row = np.clip((2 * shore - y) * side + 1.4 * waves, 0, shore * side - 1)
    column = np.clip(canvas.x * side + waves, 0, side - 1).astype(np.int32)
    return canvas.image[row.astype(np.int32), column]


def _glitter(
    canvas: Canvas, rng: Generator, light: Light, top: float, amount: float, cover: np.ndarray | float
) -> None:
    """Paints the path of sun or moon on water below y = `top`."""
    amount = amount * light.weather.sun * (0.5 if light.hour == "noon" else 1.0)
    # Land or clouds in front of the sun leave little of it.
    row, column = (min(max(int(place * canvas.side), 0), canvas.side - 1) for place in light.sun[::-1])
    hidden = float(np.abs(canvas.image[row, column] - light.colours.sun).max())
    amount = amount * float(1.0 - 0.85 * smoothstep(0.15, 0.45, np.float32(hidden)))
    if amount <= 0:
        return
    rows = canvas.rows(top)
    near = np.clip((canvas.y[rows] - top) / (1.0 - top), 0.0, 1.0)
    path = np.exp(-(((canvas.x - light.sun[0]) / (0.045 + 0.11 * near)) ** 2))
    bars = smoothstep(-0.3, 1.0, canvas.texture("wave", rng)[rows])
    canvas.paint(light.colours.sun, np.clip(path * bars * np.float32(amount), 0.0, 0.95) * cover, rows)


def lake(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints a calm lake from just below the foot of the land to a near shore at the lower edge."""
    light = land.light
    shore = land.base + 0.035
    far = (shore + 0.004 * canvas.line(rng, 1.5, low=2, high=14)).astype(np.float32)
    rows = canvas.rows(shore - 0.02)
    y = canvas.y[rows]
    near = np.clip((y - shore) / (1.0 - shore), 0.0, 1.0)
    mirrored = _mirrored(canvas, rng, shore, 0.0040, rows)
    deep = light.colours.zenith * 0.62 + light.colours.shade * 0.20
    water = mix(mirrored * 0.93, deep, 0.10 + 0.34 * near + 0 * canvas.x)
    bars = canvas.texture("wave", rng)[rows]
    water = mix(water, light.colours.horizon, 0.20 * smoothstep(0.9, 2.0, bars))
    line = np.exp(-(((y - far[None, :] - 0.004) / 0.006) ** 2))
    water = mix(water, light.colours.light * 0.95, 0.40 * line)
    canvas.paint(water, canvas.under(far, rows), rows)
    _glitter(canvas, rng, light, shore + 0.01, 0.65, 1.0)


def near_shore(canvas: Canvas, rng: Generator, land: Land, albedo: np.ndarray) -> None:
    """Paints the viewer's shore of a lake: a low bank with grass or sand."""
    bank = (
        0.945
        - 0.16 * np.abs(canvas.x[0] - rng.uniform(0.3, 0.7)) ** 1.5
        + 0.010 * canvas.line(rng, 1.7, high=10)
    )
    bank = bank.astype(np.float32)
    wet = canvas.rows(float(bank.min()) - 0.03)
    canvas.paint(land.light.shone(albedo * 0.4, 0.2), 0.45 * canvas.under(bank - 0.008, wet, 0.02), wet)
    ground(canvas, rng, replace(land, base=0.80), albedo * 0.9, bank)


def river_course(rng: Generator, near: np.ndarray) -> np.ndarray:
    """Returns x of a river's middle at depths from 0 (the horizon) to 1 (the viewer)."""
    swing = rng.choice((-1.0, 1.0)) * rng.uniform(0.15, 0.22)
    turn = np.sin(2.0 * np.pi * rng.uniform(1.0, 1.25) * near**0.62 + rng.uniform(-0.4, 0.4))
    return 0.5 + rng.uniform(-0.08, 0.08) + swing * turn * (0.25 + 0.75 * near)


def river(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints a river that winds and widens from the horizon to the lower edge, in the colours of the sky."""
    light = land.light
    start = land.base + 0.012
    rows = canvas.rows(start)
    y = canvas.y[rows]
    near = np.clip((y - start) / (1.0 - start), 0.0, 1.0)
    centre = river_course(rng, near)
    half = 0.014 + 0.18 * near**1.3
    edge = 0.008 * canvas.texture("soft", rng)[rows] * (0.2 + near)
    inside = (half - np.abs(canvas.x - centre) + edge).astype(np.float32)
    below = start < y
    sandy = smoothstep(-0.040, 0.0, inside / (0.3 + near)) * below
    bank = light.shone(SNOW * 0.9 if land.snow else rgb(0.62, 0.54, 0.38), 0.55)
    canvas.paint(bank, sandy * np.float32(0.75), rows)
    sky = mix(light.colours.horizon, light.colours.middle, smoothstep(0.0, 0.5, near))
    sky = mix(sky, light.colours.zenith, smoothstep(0.35, 1.1, near) * 0.8)
    bars = canvas.texture("wave", rng)[rows]
    water = mix(sky * (0.95 + 0.05 * bars[..., None]), light.colours.light, 0.45 * smoothstep(0.9, 1.9, bars))
    # Banks throw a shadow on the water along the far side.
    rim = smoothstep(0.018, 0.0, inside / (0.3 + near)) * (light.side * (canvas.x - centre) > 0)
    water = mix(water, light.colours.shade * rgb(0.35, 0.45, 0.45), 0.55 * rim)
    canvas.paint(water, np.clip(inside * canvas.side + 0.5, 0.0, 1.0) * below, rows)


def sea(canvas: Canvas, rng: Generator, land: Land, rough: float) -> None:
    """Paints open sea below the horizon: waves growing towards the viewer, foam, a path of light under the sun."""
    light, base = land.light, land.base
    rows = canvas.rows(base)
    y = canvas.y[rows]
    near = np.clip((y - base) / (1.0 - base), 0.0, 1.0)
    flat = near + 0 * canvas.x
    mirrored = _mirrored(canvas, rng, base, 0.008, rows)
    tone = {"dawn": rgb(0.22, 0.36, 0.48), "noon": rgb(0.05, 0.38, 0.55), "dusk": rgb(0.20, 0.18, 0.36),
            "night": rgb(0.03, 0.08, 0.22)}[light.hour]  # fmt: skip
    deep = mix(light.colours.zenith * 0.55, tone, 0.6) * np.float32(light.weather.dark)
    deep = mix(deep, light.colours.grey * 0.75, light.weather.dull * 0.45)
    shallow = mix(
        deep, rgb(0.25, 0.72, 0.70) * light.colours.light, 0.42 if light.weather.dull < 0.4 else 0.12
    )
    water = mix(deep, shallow, smoothstep(0.45, 1.0, flat))
    water = mix(water, mirrored, 0.52 - 0.34 * flat)
    water = mix(water, light.colours.haze, 0.40 * (1.0 - flat) ** 5)
    # Waves lie as on a plane: closer to each other towards the horizon.
    field = canvas.texture("wave", rng)
    depth = 0.55 / (near[:, 0] + 0.18)
    row = depth * canvas.side
    whole = np.floor(row).astype(int)
    part = (row - whole).astype(np.float32)[:, None]
    waves = field[whole % canvas.side] * (1.0 - part) + field[(whole + 1) % canvas.side] * part
    crest = waves * (0.35 + 0.65 * near)
    water = water * (1.0 + (0.07 + 0.07 * rough) * crest)[..., None]
    water = mix(water, light.colours.light * 0.95, 0.20 * smoothstep(0.7, 1.7, crest))
    canvas.paint(water, canvas.under(np.full(canvas.side, base, np.float32), rows), rows)
    _glitter(canvas, rng, light, base, 0.95, 1.0)
    foam = smoothstep(1.35 - 0.6 * rough, 2.0 - 0.6 * rough, waves) * smoothstep(0.10, 0.5, near)
    canvas.paint(
        mix(light.colours.light, light.colours.haze, 0.2), foam * np.float32(0.55 + 0.35 * rough), rows
    )


def beach(canvas: Canvas, rng: Generator, land: Land, albedo: np.ndarray) -> None:
    """Paints the viewer's beach: the last waves' foam, wet and dry sand."""
    light = land.light
    slant = 0.06 * (canvas.x[0] - 0.5) * rng.choice((-1, 1))
    shore = (0.925 + 0.012 * canvas.line(rng, 2.0, high=5) + slant).astype(np.float32)
    rows = canvas.rows(float(shore.min()) - 0.08)
    for out, wide, opacity in ((0.050, 0.010, 0.55), (0.016, 0.016, 0.9)):
        edge = shore - out + 0.006 * canvas.line(rng, 1.6, low=2, high=12)
        away = np.abs(canvas.y[rows] - edge[None, :]) + 0.004 * canvas.texture("rough", rng)[rows]
        band = smoothstep(wide, 0.55 * wide, away)
        canvas.paint(light.colours.light * 0.97, band * np.float32(opacity), rows)
    sand = albedo * 0.4 + rgb(0.86, 0.74, 0.54) * 0.6
    ground(canvas, rng, replace(land, base=1.0 - 1e-3), sand, shore)
    wet = np.exp(-(((canvas.y[rows] - shore[None, :] - 0.012) / 0.014) ** 2))
    canvas.paint(light.colours.middle * 0.6, wet * np.float32(0.35), rows)


def waterfall(canvas: Canvas, rng: Generator, land: Land, rock: np.ndarray) -> None:
    """Paints a wall of rock with a fall of white water into a pool that runs towards the viewer."""
    light, x = land.light, canvas.x[0]
    middle = float(on_grid(0.5 + rng.uniform(-0.12, 0.12), CELL))
    away = np.abs(x - middle)
    top = (
        land.base - 0.13 - 0.20 * smoothstep(0.05, 0.42, away) + 0.012 * canvas.line(rng, 1.3, low=3, high=26)
    )
    top = top.astype(np.float32)
    foot = land.base + 0.20
    conifers(canvas, rng, light, land.season, top + 0.01, 0.13, 0.06, 0.22, 0.9, gap=0.16, middle=middle)
    _rock_wall(canvas, rng, land, top, foot, rock)
    rows = canvas.rows(float(top.min()), foot + 0.03)
    y = canvas.y[rows]
    lip = float(top[int(middle * canvas.side)])
    fall = np.clip((y - lip) / (foot - lip), 0.0, 1.0)
    wide = 0.040 + 0.022 * fall
    sway = 0.006 * canvas.texture("soft", rng)[rows]
    inside = wide - np.abs(canvas.x - middle + sway)
    streaks = canvas.texture("tall", rng)[rows]
    white = mix(
        light.shone(rgb(0.97, 0.99, 1.0), np.clip(0.84 + 0.17 * streaks, 0.45, 1.0)), _white(light), 0.5
    )
    below = canvas.under(np.full(canvas.side, lip + 0.002, np.float32), rows)
    canvas.paint(white, np.clip(inside * canvas.side + 0.5, 0.0, 1.0) * below, rows)
    _pool(canvas, rng, land, middle, foot)
    spray = mix(light.colours.light, _white(light), 0.5)
    for dx, wide, high in ((0.0, 0.115, 0.045), (-0.05, 0.07, 0.035), (0.05, 0.07, 0.035)):
        canvas.glow(middle + dx, foot - 0.005, wide, high, spray, 0.62)
    _boulders(canvas, rng, light, rock, middle, foot)


def _white(light: Light) -> np.ndarray:
    """Returns white as bright as the light is."""
    return np.full(3, min(float(light.colours.light.mean()) * 1.1, 1.0), np.float32)


def _rock_wall(
    canvas: Canvas, rng: Generator, land: Land, top: np.ndarray, foot: float, rock: np.ndarray
) -> None:
    light = land.light
    rows = canvas.rows(float(top.min()), foot + 0.03)
    below = canvas.y[rows] - top[None, :]
    lit, tone = rock_face(canvas, rng, light, rows)
    lit = lit - 0.5 * np.clip(below - 0.12, 0, 0.4)
    albedo = rock * (1.0 + tone)[..., None]
    green = SNOW if land.snow else land.season.grass * 0.8
    moss = smoothstep(0.4, 1.3, canvas.texture("grain", rng)[rows])
    albedo = mix(albedo, green, 0.7 * moss)
    cap = smoothstep(0.034, 0.022, below + 0.008 * canvas.texture("rough", rng)[rows])
    albedo, lit = mix(albedo, green, cap), lit + 0.25 * cap
    canvas.paint(light.shone(albedo, lit, 0.08), canvas.under(top, rows), rows)


def _pool(canvas: Canvas, rng: Generator, land: Land, middle: float, foot: float) -> None:
    """Paints the pool under a fall, green meadows beside it."""
    light = land.light
    rows = canvas.rows(foot - 0.02)
    y = canvas.y[rows]
    line = (foot + 0.006 * canvas.line(rng, 1.5, low=2, high=12)).astype(np.float32)
    ground(canvas, rng, replace(land, base=foot - 0.1), SNOW if land.snow else land.season.grass * 0.8, line)
    near = np.clip((y - foot) / (1.0 - foot), 0.0, 1.0)
    half = 0.20 + 0.16 * near + 0.012 * canvas.texture("soft", rng)[rows]
    inside = (half - np.abs(canvas.x - middle - 0.10 * near * light.side)).astype(np.float32)
    bars = canvas.texture("wave", rng)[rows]
    mirrored = _mirrored(canvas, rng, foot, 0.012, rows)
    water = mix(
        mirrored,
        mix(light.colours.middle, rgb(0.10, 0.45, 0.50) * light.colours.light, 0.5),
        0.40 + 0.2 * near + 0 * canvas.x,
    )
    water = mix(water, light.colours.light * 0.96, 0.5 * smoothstep(0.6, 1.7, bars) * (1 - 0.4 * near))
    mask = np.clip(inside * canvas.side + 0.5, 0.0, 1.0) * canvas.under(line, rows)
    bank = smoothstep(-0.022, 0.0, inside) * canvas.under(line, rows)
    canvas.paint(light.shone(rgb(0.30, 0.28, 0.24), 0.3), 0.75 * bank, rows)
    canvas.paint(water, mask, rows)


def _boulders(
    canvas: Canvas, rng: Generator, light: Light, rock: np.ndarray, middle: float, foot: float
) -> None:
    """Paints rocks along the edges of the pool, lit from the sun's side."""
    count = 14
    near = np.sort(rng.random(count))
    edge = (0.20 + 0.16 * near) * np.where(rng.random(count) < 0.5, -1, 1) * rng.uniform(0.92, 1.15, count)
    x, y = middle + 0.10 * near * light.side + edge, foot + 0.01 + (0.97 - foot) * near
    radius = 0.016 + 0.026 * near * rng.uniform(0.7, 1.3, count)
    relief = canvas.puffs(x, y, radius)[0]
    rows = canvas.rows(foot - 0.05)
    relief = relief[rows] + 0.003 * canvas.texture("rough", rng)[rows]
    down, right = np.gradient(relief)
    lit = 0.45 + 0.5 * np.clip((-right * light.side * 0.7 + down * 0.7) * canvas.side, -1.0, 1.0)
    albedo = np.broadcast_to(rock * 1.1, (*relief.shape, 3))
    if light.snow:
        albedo = mix(albedo, SNOW, smoothstep(0.5, 0.7, lit))
    canvas.paint(light.shone(albedo, lit), np.clip(relief * canvas.side + 0.5, 0.0, 1.0), rows)
