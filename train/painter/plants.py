"""Plants: rows of conifers, round trees, cacti, flowers and grass, in the colours of the season."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from train.painter.light import SNOW, Light
from train.painter.painting import CELL, Canvas, dotted, mix, on_grid, rgb, smoothstep


@dataclass(frozen=True)
class Season:
    """Colours of a season.

    Attributes:
      leaves, needles: of round trees and conifers, float32 [k, 3], one of them per tree; grass: of meadows [3].
      round_share: share of a forest's trees that are round; flowers: of meadows, float32 [k, 3], None without any.
    """

    leaves: np.ndarray
    needles: np.ndarray
    grass: np.ndarray
    round_share: float
    flowers: np.ndarray | None = None


SEASONS = {
    "summer": Season(
        np.array([(0.20, 0.42, 0.14), (0.25, 0.47, 0.16), (0.17, 0.38, 0.17)], np.float32),
        np.array([(0.09, 0.25, 0.16), (0.12, 0.29, 0.17), (0.10, 0.23, 0.12)], np.float32),
        rgb(0.40, 0.60, 0.22), 0.0,
    ),
    "spring": Season(
        np.array([(0.98, 0.68, 0.80), (1.0, 0.82, 0.88), (0.92, 0.52, 0.70), (0.55, 0.78, 0.32)], np.float32),
        np.array([(0.20, 0.44, 0.20), (0.26, 0.50, 0.22)], np.float32),
        rgb(0.52, 0.76, 0.28), 0.6, np.array([(1.0, 0.55, 0.72), (1.0, 0.95, 0.55), (1.0, 1.0, 1.0)], np.float32),
    ),
    "autumn": Season(
        np.array([(0.88, 0.36, 0.10), (0.95, 0.58, 0.12), (0.75, 0.18, 0.12), (0.96, 0.74, 0.22)], np.float32),
        np.array([(0.85, 0.52, 0.12), (0.30, 0.32, 0.14), (0.78, 0.36, 0.10)], np.float32),
        rgb(0.74, 0.58, 0.24), 0.6,
    ),
    "winter": Season(
        np.array([(0.46, 0.40, 0.40), (0.52, 0.47, 0.48)], np.float32),
        np.array([(0.13, 0.25, 0.22), (0.16, 0.28, 0.25)], np.float32),
        rgb(0.62, 0.62, 0.60), 0.0,
    ),
}  # fmt: skip


def conifers(
    canvas: Canvas, rng: Generator, light: Light, season: Season, base: np.ndarray, height: float, spacing: float,
    distance: float, density: float = 1.0, gap: float = 0.0, middle: float = 0.5, room: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Paints a row of conifers standing on a line.

    Args:
      base: y of the feet, float32 [S].
      height: typical height of a tree.
      spacing: typical distance between neighbours.
      density: probability that a place in the row has a tree.
      gap: width of the treeless part of the row, around `middle`.
      room: bool [S], where there is land; None for everywhere.
    """
    count = int(np.ceil(1 / spacing)) + 4
    place = on_grid((np.arange(count) - 1.5 + rng.uniform(-0.4, 0.4, count)) * spacing)
    tall = height * rng.choice((0.65, 0.80, 0.95, 1.10), count)
    slender = rng.choice((0.9, 1.1), count)
    colour = rng.integers(0, len(season.needles), count)
    bright = rng.choice((0.92, 1.08), count).astype(np.float32)
    column = np.clip((place * canvas.side).astype(int), 0, canvas.side - 1)
    stands = (rng.random(count) < density) & (np.abs(place - middle) >= gap / 2)
    if room is not None:
        stands &= room[column]
    tiers = 3.0 if height < 0.12 else 4.0 if height < 0.2 else 6.0 if height > 0.4 else 5.0
    # Every other one first: neighbours overlap as trees do.
    for tree in (*range(0, count, 2), *range(1, count, 2)):
        if stands[tree]:
            leaf, form = season.needles[colour[tree]] * bright[tree], (slender[tree], tiers)
            foot = float(on_grid(base[column[tree]] + CELL / 4))
            _conifer(canvas, light, place[tree], foot, float(tall[tree]), form, leaf, distance)


def _conifer(
    canvas: Canvas, light: Light, x: float, foot: float, tall: float, form: tuple[float, float], leaf, distance
) -> None:  # fmt: skip
    """Paints a conifer of a form: (factor of its width, tiers of boughs)."""
    slender, tiers = (np.float32(value) for value in form)
    reach = 0.31 * tall * float(slender)
    rows, columns = canvas.rows(foot - tall, foot + 0.02 * tall), canvas.columns(x - reach, x + reach)
    dx, down = (
        canvas.x[:, columns] - np.float32(x),
        (canvas.y[rows] - np.float32(foot - tall)) / np.float32(tall),
    )
    tier = np.mod(down * tiers / np.float32(0.95), 1.0)
    half = np.where(down > 0.95, 0.03, slender * down * (0.15 + 0.14 * tier)) * np.float32(tall)
    mask = np.clip((half - np.abs(dx)) * canvas.side + 0.5, 0.0, 1.0) * ((down > 0) & (down < 1.02))
    across = np.clip(dx / (np.abs(half) + 1e-3), -1, 1) * np.float32(light.side)
    lit = 0.36 + 0.34 * across + np.float32(min(0.26, 1.3 * tall)) * tier
    if light.snow:
        # Snow lies on the boughs; between them the needles show.
        lies = smoothstep(0.15, 0.55, tier + 0.22 * across) * np.float32(0.88) * (down < 0.95)
        leaf = mix(mix(leaf * 1.3, SNOW, 0.35), SNOW, lies)
        lit = 0.56 + 0.34 * across + 0.10 * lies
    canvas.paint(light.shone(leaf, lit, distance), mask, rows, columns)


def round_trees(
    canvas: Canvas, rng: Generator, light: Light, leaves: np.ndarray, x, foot, height, distance: float
) -> None:
    """Paints trees with round crowns at feet (x, foot) of given heights, arrays [n], each with its shadow."""
    x, foot, height = (np.asarray(values, np.float64) for values in (x, foot, height))
    if not len(x):
        return
    colour = rng.integers(0, len(leaves), len(x))
    bark = light.shone(rgb(0.30, 0.22, 0.16), 0.4, distance)
    shadow = light.behind(light.colours.shade * rgb(0.20, 0.26, 0.18), distance)
    for i in range(len(x)):
        h = float(height[i])
        canvas.glow(x[i] - light.side * 0.22 * h, foot[i], 0.34 * h, 0.055 * h, shadow, 0.62)
        canvas.polygon(
            [(x[i] - 0.028 * h, foot[i] - 0.5 * h), (x[i] + 0.028 * h, foot[i] - 0.5 * h),
             (x[i] + 0.045 * h, foot[i] + 0.01 * h), (x[i] - 0.045 * h, foot[i] + 0.01 * h)], bark,
        )  # fmt: skip
    puffs = (
        (0, 0.62, 0.27),
        (-0.19, 0.52, 0.17),
        (0.19, 0.52, 0.17),
        (-0.11, 0.78, 0.17),
        (0.12, 0.79, 0.16),
    )
    px, py, pr, tint = [], [], [], []
    for dx, up, r in puffs:
        wobble = rng.uniform(-0.03, 0.03, (2, len(x)))
        px.append(x + (dx + wobble[0]) * height)
        py.append(foot - (up + wobble[1]) * height)
        pr.append(r * rng.uniform(0.88, 1.12, len(x)) * height)
        tint.append(colour)
    px, py, pr, tint = (np.concatenate(part) for part in (px, py, pr, tint))
    relief, owner = canvas.puffs(px, py, pr, tint)
    if height.max() > 0.2:
        relief = relief * 0.7 + 0.6 * _boughs(canvas, rng, x, foot, height, relief)
    rows = canvas.rows(float((py - pr).min()) - 0.01, float((py + pr).max()) + 0.01)
    columns = canvas.columns(float((px - pr).min()) - 0.01, float((px + pr).max()) + 0.01)
    relief, owner = relief[rows, columns], owner[rows, columns]
    rough = canvas.texture("rough", rng)[rows, columns]
    if min(relief.shape) < 2:
        return  # All crowns are outside the picture, but for a line.
    relief = relief + np.float32(0.006 * min(float(height.mean()), 0.25)) * rough
    down, right = np.gradient(relief)
    lit = 0.50 + 0.38 * np.clip((-right * light.side * 0.75 + down * 0.75) * canvas.side, -1.0, 1.0)
    albedo = leaves[np.minimum(owner, len(leaves) - 1)]
    if light.snow:
        # Frost on all twigs, snow on those that face the sky.
        albedo = mix(albedo, SNOW, 0.50 + 0.45 * smoothstep(0.35, 0.70, lit))
        lit = lit + 0.10
    canvas.paint(
        light.shone(albedo, lit, distance), np.clip(relief * canvas.side + 0.5, 0.0, 1.0), rows, columns
    )


def _boughs(canvas: Canvas, rng: Generator, x, foot, height, crowns: np.ndarray) -> np.ndarray:
    """Returns the relief [S, S] of boughs on crowns that are near enough to show them, 0 beside them."""
    count = 80 * len(x)
    tree, angle, out = np.arange(count) % len(x), rng.uniform(0, 2 * np.pi, count), np.sqrt(rng.random(count))
    px = x[tree] + 0.34 * out * np.cos(angle) * height[tree]
    py = foot[tree] - (0.65 + 0.30 * out * np.sin(angle)) * height[tree]
    relief = canvas.puffs(px, py, rng.uniform(0.035, 0.085, count) * height[tree])[0]
    return np.maximum(relief, 0.0) * smoothstep(-0.05, 0.0, crowns)


def scattered(
    canvas: Canvas, rng: Generator, light: Light, leaves, base: np.ndarray, sink: float, height: float,
    spacing: float, distance: float, density: float, gap: float = 0.0, room: np.ndarray | None = None,
    lowest: float = 1.0,
) -> None:  # fmt: skip
    """Paints a loose row of round trees up to `sink` below a line, where there is room, leaving a gap in the middle.

    No tree stands below `lowest`.
    """
    count = int(1 / spacing) + 1
    x = on_grid((np.arange(count) + rng.uniform(0.05, 0.95, count)) * spacing)
    keep = (rng.random(count) < density) & (np.abs(x - 0.5) >= gap / 2)
    size = height * rng.choice((0.75, 0.95, 1.15), count)
    drop = rng.uniform(0.3, 1.0, count) * sink
    stands = np.clip((x * canvas.side).astype(int), 0, canvas.side - 1)
    foot = np.minimum(on_grid(base[stands] + drop + CELL / 4), lowest)
    if room is not None:
        keep &= room[stands]
    order = np.argsort(foot)
    order = order[keep[order]]
    round_trees(canvas, rng, light, leaves, x[order], foot[order], size[order], distance)


def bare_tree(canvas: Canvas, rng: Generator, light: Light, x: float, foot: float, height: float) -> None:
    """Paints a tree without leaves, snow along its boughs."""
    bark, lies = light.shone(rgb(0.34, 0.27, 0.24), 0.4), light.shone(SNOW, 0.9)
    boughs = [(x, foot, np.pi / 2 + rng.uniform(-0.06, 0.06), 0.30 * height, 0.075 * height)]
    strokes = []
    for _ in range(5):
        grown = []
        for x0, y0, angle, length, width in boughs:
            x1, y1 = x0 + length * np.cos(angle), y0 - length * np.sin(angle)
            strokes.append((x0, y0, x1, y1, max(width, 0.011)))
            for turn in (-1, 1):
                bend = angle + turn * rng.uniform(0.28, 0.62)
                grown.append((x1, y1, bend, length * rng.uniform(0.66, 0.82), width * 0.62))
        boughs = grown
    for x0, y0, x1, y1, width in strokes:
        canvas.stroke([(x0, y0), (x1, y1)], width, bark)
        # On what is not too steep.
        if abs(x1 - x0) > 0.45 * abs(y1 - y0):
            rise = 0.45 * width
            canvas.stroke([(x0, y0 - rise), (x1, y1 - rise)], 0.55 * width, lies)


def cactus(canvas: Canvas, rng: Generator, light: Light, place: float, foot: float, height: float) -> None:
    """Paints a saguaro with two raised arms at (place, foot), and its shadow."""
    shadow = light.colours.shade * rgb(0.40, 0.30, 0.24)
    canvas.glow(place - light.side * 0.3 * height, foot, 0.45 * height, 0.04 * height, shadow, 0.6)
    parts = [(place, foot, foot - height, 0.095 * height)]
    for sign in (-1.0, 1.0):
        elbow, reach = foot - height * rng.uniform(0.35, 0.6), sign * height * rng.uniform(0.24, 0.31)
        parts += [(place + reach * step / 4, elbow, elbow, 0.065 * height) for step in range(4)]
        parts.append((place + reach, elbow, elbow - height * rng.uniform(0.18, 0.32), 0.065 * height))
    rows = canvas.rows(foot - 1.15 * height, foot + 0.15 * height)
    columns = canvas.columns(place - 0.5 * height, place + 0.5 * height)
    x, y = canvas.x[:, columns], canvas.y[rows]
    away, across = np.float32(1.0), np.float32(0.0)
    for px, low, high, radius in parts:
        here = np.hypot(x - px, y - np.clip(y, high, low)) - np.float32(radius)
        across = np.where(here < away, np.clip((x - px) / radius, -1, 1), across)
        away = np.minimum(away, here)
    mask = np.clip(0.5 - away * canvas.side, 0.0, 1.0) * (y < foot)
    lit = 0.48 + 0.40 * light.side * across - 0.12 * np.cos(across * 7.0)
    albedo = np.broadcast_to(rgb(0.24, 0.44, 0.22), (*mask.shape, 3))
    if light.snow:
        albedo = mix(albedo, SNOW, 0.75 * smoothstep(0.0, 0.6, light.side * across + 0.2))
    canvas.paint(light.shone(albedo, lit), mask, rows, columns)


def flowers(canvas: Canvas, rng: Generator, light: Light, season: Season, top: float) -> None:
    """Paints flowers of a season in drifts over a meadow from `top` to the lower edge, larger when nearer."""
    if season.flowers is None:
        return
    count = 64
    near = rng.random(count) ** 0.7
    y = top + (1.0 - top) * near
    x = rng.random(count)
    # In drifts: what falls into sparse places is moved out of the picture.
    y, x = dotted(y), dotted(x)
    drift = np.sin(x * rng.uniform(9, 14) + 4 * near + rng.uniform(0, 6)) + rng.normal(size=count) * 0.5
    x = np.where(drift > 0, x, -1.0)
    radius = 0.0095 + 0.0075 * near
    relief, tint = canvas.puffs(x, y, radius, rng.integers(0, len(season.flowers), count))
    rows = canvas.rows(top - 0.02)
    colour = season.flowers[np.minimum(tint[rows], len(season.flowers) - 1)]
    mask = np.clip(relief[rows] * canvas.side + 0.5, 0.0, 1.0)
    canvas.paint(light.shone(colour, 0.9), mask * np.float32(0.92), rows)
