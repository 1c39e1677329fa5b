"""Procedural landscapes: the built-in data set, seeded and addressable by index.

Everything about a picture that its scene leaves open (relief, clouds, trees, waves) comes from random numbers of its
key, so a caption leaves most of a picture open. Axis letters: n pictures, A attributes, S side of the canvas.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from lantern_jax.apps.metrics.landscapes import ATTRIBUTES
from lantern_jax.io.errors import LanternError
from train.painter import buildings, foreground, plants, sky, terrain, water, weather
from train.painter.light import light_of
from train.painter.painting import BAND, Canvas, mix, on_grid, rgb, smoothstep
from train.painter.plants import SEASONS
from train.painter.scenes import Scene, sample_scene
from train.painter.styles import apply_style
from train.painter.terrain import Land

# The default side of a picture, and the smallest side that is painted as such.
SIZE, SMALLEST = 256, 2 * BAND


def render(scene: Scene, size: int = SIZE) -> np.ndarray:
    """Paints a scene.

    Args:
      size: side of the picture: a power of two from 1 to 1024. The picture is the same at any side, with more or less
        detail; below 128 it is the box average of the one at 128.
    Returns:
      uint8 [size, size, 3], the same for the same scene.
    Raises:
      LanternError: another size.
    """
    if size not in (1 << power for power in range(11)):
        raise LanternError(f"size {size}: expected a power of two up to 1024, such as 128 or 256")
    image = _paint(scene, max(size, SMALLEST))
    block = len(image) // size
    if block > 1:
        image = image.reshape(size, block, size, block, 3).mean((1, 3))
    return (image * 255.0 + 0.5).astype(np.uint8)


def render_batch(seed: int, indices: Iterable[int], size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Paints scenes `indices` of the set `seed`: pictures uint8 [n, size, size, 3] and attributes int32 [n, A]."""
    scenes = [sample_scene(seed, int(index)) for index in indices]
    images = np.empty((len(scenes), size, size, 3), np.uint8)
    drawn = np.empty((len(scenes), len(ATTRIBUTES)), np.int32)
    for row, scene in enumerate(scenes):
        images[row] = render(scene, size)
        drawn[row] = scene.indices()
    return images, drawn


def _paint(scene: Scene, side: int) -> np.ndarray:
    """Returns the picture of a scene, float32 [S, S, 3] in [0, 1]."""
    canvas = Canvas(side, (*scene.key, 1))
    rng = scene.random("composition")
    base = float(on_grid(rng.uniform(0.51, 0.61) + (0.04 if scene.water == "none" else 0.0)))
    snow = scene.weather == "snowy" or scene.season == "winter"
    light = light_of(scene.random("light"), scene.time, scene.weather, base, snow)
    land = Land(light, SEASONS[scene.season], base, _envelope(canvas, scene))

    # Ink leaves stars out: it would draw a ring around each.
    stars = scene.time == "night" and scene.weather in ("clear", "cloudy") and scene.style != "ink"
    sky.paint_sky(canvas, scene.random("sky"), light, stars)
    if scene.sight == "aurora":
        sky.paint_sight(canvas, scene.random("sight"), light, scene.sight)
    sky.paint_sun(canvas, scene.random("sun"), light)
    sky.paint_clouds(canvas, scene.random("clouds"), light, scene.weather)
    if scene.sight == "rainbow":
        sky.paint_sight(canvas, scene.random("sight"), light, scene.sight)
    getattr(buildings if scene.terrain == "town" else terrain, scene.terrain)(
        canvas, scene.random("terrain"), land
    )
    _paint_near(canvas, scene, land)
    if scene.sight in ("birds", "balloons"):
        sky.paint_sight(canvas, scene.random("sight"), light, scene.sight)
    weather.falling(canvas, scene.random("weather"), light, scene.weather)
    canvas.image *= (1.0 - 0.26 * ((canvas.x - 0.5) ** 2 + (canvas.y - 0.5) ** 2))[..., None]
    if scene.style != "plain":
        apply_style(canvas, scene.random("style"), scene.style)
    return np.clip(canvas.image, 0.0, 1.0)


def _envelope(canvas: Canvas, scene: Scene) -> np.ndarray:
    """Returns the factor of the land's height per column, float32 [S]: by the sea, the land ends in a coast."""
    if scene.water != "sea":
        return np.ones(canvas.side, np.float32)
    rng = scene.random("coast")
    inland = canvas.x[0] if rng.random() < 0.5 else 1.0 - canvas.x[0]
    ragged = inland + 0.02 * canvas.line(rng, 1.8, low=3, high=12)
    return (1.0 - smoothstep(0.38, 0.80, ragged)).astype(np.float32)


def _albedo(scene: Scene, land: Land) -> np.ndarray:
    """Returns the colour of the ground in front of a kind of terrain, float32 [3]."""
    grass = land.season.grass
    return {
        "mountains": grass * rgb(0.86, 0.78, 0.95),
        "hills": grass,
        "desert": rgb(0.92, 0.70, 0.43),
        "forest": mix(grass, land.season.needles.mean(0), 0.5),
        "cliffs": grass * 0.92,
        "town": grass,
    }[scene.terrain]


def _paint_near(canvas: Canvas, scene: Scene, land: Land) -> None:
    """Paints ground, water, what is on it, and what is near the viewer."""
    albedo, rng = _albedo(scene, land), scene.random("near")
    if scene.water != "sea":
        horizon = land.base + 0.004 * canvas.line(scene.random("ground"), 1.6, low=2, high=16)
        terrain.ground(canvas, scene.random("ground"), land, albedo, horizon.astype(np.float32))
    if scene.water in ("none", "river"):
        foreground.near_layers(canvas, rng, land, scene.terrain, albedo, scene.water == "river")
    own = scene.random("water")
    if scene.water == "river":
        plants.flowers(canvas, scene.random("flowers"), land.light, land.season, 0.74)
    if scene.water == "lake":
        water.lake(canvas, own, land)
    elif scene.water == "river":
        water.river(canvas, own, land)
    elif scene.water == "sea":
        water.sea(canvas, own, land, 1.0 if scene.weather == "stormy" else 0.0)
    elif scene.water == "waterfall":
        rock = rgb(0.80, 0.66, 0.50) if scene.terrain == "cliffs" else rgb(0.44, 0.42, 0.43)
        water.waterfall(canvas, own, land, rock)
    if scene.weather == "foggy":
        weather.fog(canvas, scene.random("weather"), land.light)
    if scene.craft == "boats":
        near = np.float32(0.78)
        middle = float(water.river_course(scene.random("water"), near)) if scene.water == "river" else None
        buildings.boats(canvas, scene.random("craft"), land.light, middle)
    if scene.water == "lake":
        water.near_shore(canvas, own, land, albedo)
    elif scene.water == "sea":
        water.beach(canvas, own, land, albedo)
    foreground.nearest(
        canvas, scene.random("foreground"), replace(land, envelope=np.ones_like(land.envelope)), scene, albedo
    )
