"""What lies before the viewer: the land in front of the terrain, and what is nearest."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from train.painter.painting import CELL, Canvas, on_grid
from train.painter.plants import bare_tree, cactus, conifers, flowers, round_trees, scattered
from train.painter.scenes import Scene
from train.painter.terrain import Land, dune, rolling, woods


def near_layers(
    canvas: Canvas, rng: Generator, land: Land, kind: str, albedo: np.ndarray, river: bool
) -> None:
    """Paints the land in front of the terrain in two layers: swelling meadows, dunes or a clearing."""
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


def nearest(canvas: Canvas, rng: Generator, land: Land, scene: Scene, albedo: np.ndarray) -> None:
    """Paints what is nearest to the viewer: trees at the sides, cacti, grass, flowers."""
    light, season = land.light, land.season
    meadow = scene.terrain != "desert" and scene.water != "sea"
    if meadow and scene.water in ("none", "lake"):
        flowers(canvas, rng, light, season, 0.94 if scene.water == "lake" else 0.72)
    if scene.terrain == "desert" and scene.water != "sea":
        for _ in range(rng.integers(1, 4)):
            place = on_grid(0.5 + rng.choice((-1.0, 1.0)) * rng.uniform(0.24, 0.46))
            foot = rng.uniform(0.96, 1.0) if scene.water == "lake" else rng.uniform(0.84, 0.97)
            cactus(canvas, rng, light, place, on_grid(foot), 3 * CELL + rng.integers(4) * CELL / 2)
    elif scene.water == "sea":
        return
    elif scene.terrain == "forest" or (scene.terrain == "mountains" and rng.random() < 0.45):
        edge = np.abs(canvas.x[0] - 0.5) * 2
        feet = (1.12 - 0.10 * edge + 0.02 * canvas.line(rng, 1.5, high=6)).astype(np.float32)
        height, gap = rng.uniform(0.5, 0.72), rng.uniform(0.62, 0.8)
        conifers(canvas, rng, light, season, feet, height, 0.15, 0.0, 0.8, gap)
    elif scene.terrain in ("hills", "town", "cliffs") and rng.random() < 0.6:
        place, height = (
            0.5 + float(rng.choice((-1.0, 1.0))) * rng.uniform(0.40, 0.47),
            rng.uniform(0.50, 0.62),
        )
        leaves = season.leaves[rng.integers(len(season.leaves))][None]
        if light.snow:
            bare_tree(canvas, rng, light, place, 1.01, height)
        else:
            round_trees(canvas, rng, light, leaves, [place], [1.0], [height], 0.0)
