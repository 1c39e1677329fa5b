"""What lies before the viewer, and the air between: near layers, foreground, fog, snow and rain."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from train.painter.light import SNOW, Light
from train.painter.painting import Canvas, mix, smoothstep
from train.painter.plants import cactus, conifers, flowers, round_trees, scattered
from train.painter.scenes import Scene
from train.painter.terrain import Land, dune, rolling, woods


def near_layers(
    canvas: Canvas, rng: Generator, land: Land, kind: str, albedo: np.ndarray, river: bool
) -> None:
    """Paints the land before the terrain in two layers: swelling meadows, dunes or a clearing."""
    room = 1.0 - land.base
    close = replace(land, base=1.0, envelope=np.ones(canvas.side, np.float32))
    for depth, (share, distance) in enumerate(((0.26, 0.12), (0.62, 0.0))):
        crest = land.base + share * room
        if kind == "desert":
            dune(canvas, rng, close, crest + 0.05, 0.10 + 0.03 * depth, distance, albedo, 1)
            continue
        tint = albedo * np.float32(rng.uniform(0.90, 1.08) * (1.0 - 0.10 * depth))
        relief = 0.030 if kind == "hills" else 0.020
        height = rolling(canvas, rng, close, crest, relief, distance, tint, 4, depth=1.0)
        if depth:
            continue
        gap = 0.45 if river else 0.0
        if kind in ("hills", "town", "cliffs"):
            scattered(canvas, rng, land.light, land.season.leaves, height, 0.05, 0.10, 0.13, 0.08, 0.55, gap)
        else:
            gap = rng.uniform(0.4, 0.7)
            woods(canvas, rng, land, height + 0.03, 0.15, 0.065, 0.06, 0.7, gap)


def foreground(canvas: Canvas, rng: Generator, land: Land, scene: Scene, albedo: np.ndarray) -> None:
    """Paints what is nearest to the viewer: trees at the sides, cacti, grass, flowers."""
    light, season = land.light, land.season
    meadow = scene.terrain != "desert" and scene.water != "sea"
    if meadow and scene.water in ("none", "lake"):
        flowers(canvas, rng, light, season, 0.94 if scene.water == "lake" else 0.72)
    if scene.terrain == "desert" and scene.water != "sea":
        for _ in range(rng.integers(1, 4)):
            place = 0.5 + rng.choice((-1.0, 1.0)) * rng.uniform(0.24, 0.46)
            foot = rng.uniform(0.96, 1.0) if scene.water == "lake" else rng.uniform(0.84, 0.97)
            cactus(canvas, rng, light, place, foot, rng.uniform(0.18, 0.28))
    elif scene.terrain == "forest" or (scene.terrain == "mountains" and rng.random() < 0.45):
        if scene.water != "sea":
            edge = np.abs(canvas.x[0] - 0.5) * 2
            feet = (1.12 - 0.10 * edge + 0.02 * canvas.line(rng, 1.5, high=6)).astype(np.float32)
            conifers(
                canvas,
                rng,
                light,
                season,
                feet,
                rng.uniform(0.5, 0.72),
                0.15,
                0.0,
                0.8,
                rng.uniform(0.62, 0.8),
            )
    elif meadow and scene.terrain in ("hills", "town", "cliffs") and rng.random() < 0.6:
        side = float(rng.choice((-1.0, 1.0)))
        place = 0.5 + side * rng.uniform(0.40, 0.47)
        round_trees(canvas, rng, light, season.leaves[rng.integers(len(season.leaves))][None], [place], [1.0],
                    [rng.uniform(0.50, 0.62)], 0.0)  # fmt: skip


def paint_weather(canvas: Canvas, rng: Generator, light: Light, kind: str) -> None:
    """Paints what is in the air before the viewer: fog banks, falling snow, rain."""
    if kind == "foggy":
        bank = canvas.texture("wave", rng)
        level = np.exp(-(((canvas.y - light.base + 0.02) / 0.15) ** 2))
        thick = 0.10 + 0.46 * level + 0.20 * bank * (0.25 + level)
        canvas.paint(light.colours.haze, np.clip(thick, 0.0, 0.9).astype(np.float32))
    elif kind == "snowy":
        for count, radius, opacity in ((130, 0.0048, 0.75), (60, 0.0080, 0.92)):
            sizes = radius * rng.uniform(0.75, 1.2, count)
            flakes = canvas.discs(rng.random(count), rng.random(count), sizes)
            canvas.paint(mix(light.colours.light, SNOW, 0.65), flakes * np.float32(opacity))
    elif kind == "stormy":
        rain = canvas.texture("rain", rng)
        # Slanted as the wind drives it.
        shear = (
            np.arange(canvas.side)[None, :] + (np.arange(canvas.side)[:, None] * 0.3).astype(int)
        ) % canvas.side
        streaks = np.take_along_axis(rain, shear, 1)
        canvas.paint(light.colours.haze * 1.1, np.float32(0.20) * smoothstep(0.5, 1.9, streaks))
        canvas.paint(light.colours.haze, 0.10)
