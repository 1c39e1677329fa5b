"""Procedural landscapes: the built-in data set, seeded and addressable by index.

A scene is four attributes drawn from small sets; everything else about its picture (relief, clouds, trees,
waves) comes from random numbers of its key, so a caption leaves most of it open. Axis letters: n pictures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from lantern_jax.io.errors import LanternError
from lantern_jax.text.landscapes import ATTRIBUTES
from train.painter import terrain
from train.painter.painting import CANVAS, X, Y, below, fractal, line, mix, rgb, smoothstep
from train.painter.sky import PALETTES, paint_sky
from train.painter.terrain import SNOW, Look
from train.painter.water import paint_lake, paint_river, paint_sea

_TERRAIN = {
    "mountains": (terrain.mountains, rgb(0.34, 0.42, 0.24)),
    "hills": (terrain.hills, rgb(0.40, 0.58, 0.22)),
    "desert": (terrain.desert, rgb(0.90, 0.68, 0.42)),
    "forest": (terrain.forest, rgb(0.22, 0.33, 0.16)),
}


@dataclass(frozen=True)
class Scene:
    """Four attributes and the key (seed, index) of all other randomness of the picture."""

    time: str
    terrain: str
    weather: str
    water: str
    key: tuple[int, int] = (0, 0)

    def __post_init__(self):
        for name, values in ATTRIBUTES.items():
            if getattr(self, name) not in values:
                raise LanternError(
                    f"scene: {name} is {getattr(self, name)!r}; expected one of {', '.join(values)}"
                )

    @property
    def attributes(self) -> tuple[int, ...]:
        """Index of each attribute's value, in the order of `ATTRIBUTES`."""
        return tuple(values.index(getattr(self, name)) for name, values in ATTRIBUTES.items())


def sample_scene(seed: int, index: int) -> Scene:
    """Draws scene number `index` of the data set `seed`: attributes independently and uniformly."""
    rng = np.random.default_rng((seed, index, 0))
    values = {name: values[rng.integers(len(values))] for name, values in ATTRIBUTES.items()}
    return Scene(**values, key=(seed, index))


def caption(attributes: Sequence[int]) -> str:
    """Returns the caption of four attribute indices, such as "snowy mountains at dusk by a lake"."""
    time, land, weather, water = (
        values[index] for values, index in zip(ATTRIBUTES.values(), attributes, strict=True)
    )
    where = {"none": "", "lake": " by a lake", "river": " with a river", "sea": " by the sea"}[water]
    sky = {"clear": " under a clear sky", "cloudy": " under a cloudy sky"}.get(weather, "")
    first = f"{weather} " if not sky else ""
    return f"{first}{land} at {time}{sky}{where}"


def render(scene: Scene, size: int = CANVAS) -> np.ndarray:
    """Paints a scene.

    Args:
      size: side of the picture, a divisor of 128; smaller pictures are box averages of the same canvas.
    Returns:
      uint8 [size, size, 3], the same for the same scene.
    Raises:
      LanternError: a size which does not divide 128.
    """
    if size < 1 or CANVAS % size:
        raise LanternError(f"size {size}: expected a divisor of {CANVAS}, such as 64 or 128")
    rng = np.random.default_rng((*scene.key, 1))
    image = np.clip(_paint(rng, scene), 0.0, 1.0)
    block = CANVAS // size
    image = image.reshape(size, block, size, block, 3).mean((1, 3))
    return (image * 255.0 + 0.5).astype(np.uint8)


def render_batch(seed: int, indices: Iterable[int], size: int = CANVAS) -> tuple[np.ndarray, np.ndarray]:
    """Paints scenes `indices` of the set `seed`: pictures uint8 [n, size, size, 3] and attributes int32 [n, 4]."""
    scenes = [sample_scene(seed, int(index)) for index in indices]
    images = np.empty((len(scenes), size, size, 3), np.uint8)
    attributes = np.empty((len(scenes), len(ATTRIBUTES)), np.int32)
    for row, scene in enumerate(scenes):
        images[row] = render(scene, size)
        attributes[row] = scene.attributes
    return images, attributes


def _paint(rng: Generator, scene: Scene) -> np.ndarray:
    palette = PALETTES[scene.time]
    base = rng.uniform(0.52, 0.60) + (0.05 if scene.water == "none" else 0.0)
    side = rng.choice((-1.0, 1.0))
    image, haze, sun = paint_sky(rng, scene.time, scene.weather, base, side)

    dull = {"clear": 0.0, "cloudy": 0.22, "foggy": 0.45, "snowy": 0.30}[scene.weather]
    light = palette.light + (1.15 * palette.grey - palette.light) * np.float32(1.2 * dull)
    envelope = np.ones(CANVAS, np.float32)
    if scene.water == "sea":
        inland = X[0] if rng.random() < 0.5 else 1.0 - X[0]
        envelope = 1.0 - smoothstep(0.38, 0.80, inland + 0.02 * line(rng, 1.0, low=3))
    air = {"clear": 0.55, "cloudy": 0.6, "foggy": 1.15, "snowy": 0.75}[scene.weather]
    look = Look(
        light, palette.shade, haze, air, side, scene.weather == "snowy", base, envelope.astype(np.float32)
    )

    draw, albedo = _TERRAIN[scene.terrain]
    image = draw(rng, image, look)
    if scene.water != "sea":
        horizon = (base + 0.006 * line(rng, 1.4, low=2, high=24)).astype(np.float32)
        image = terrain.ground(rng, image, look, albedo, horizon)
    if scene.water in ("none", "river"):
        image = terrain.near_layers(rng, image, look, scene.terrain, albedo)
    if scene.water == "lake":
        image = paint_lake(rng, image, look, palette, albedo)
    elif scene.water == "river":
        image = paint_river(rng, image, look, palette)
    elif scene.water == "sea":
        image = paint_sea(rng, image, look, palette, sun)
    image = _foreground(rng, image, look, scene, albedo)
    return _weather(rng, image, look, scene)


def _foreground(
    rng: Generator, image: np.ndarray, look: Look, scene: Scene, albedo: np.ndarray
) -> np.ndarray:
    """Paints what is near the viewer: more dunes, trees at the sides, a beach."""
    open_look = replace(look, base=1.0, envelope=np.ones(CANVAS, np.float32))
    if scene.water == "sea":
        shore = (0.93 + 0.02 * line(rng, 1.8, high=6) + 0.05 * (X[0] - 0.5) * rng.choice((-1, 1))).astype(
            np.float32
        )
        foam = mix(image, look.light * 0.95, below(shore - 0.018, 2.5) * 0.8)
        sand = albedo * 0.4 + rgb(0.84, 0.72, 0.52) * 0.6
        return terrain.ground(rng, foam, open_look, sand, shore)
    if scene.terrain == "forest" or (scene.terrain == "mountains" and rng.random() < 0.4):
        edge = np.abs(X[0] - 0.5) * 2
        feet = (1.12 - 0.10 * edge + 0.02 * line(rng, 1.5, high=6)).astype(np.float32)
        tall, leaf = rng.uniform(0.5, 0.75), rgb(0.08, 0.17, 0.11)
        image = terrain.plant(
            rng, image, look, feet, tall, 0.15, "conifer", 0.0, leaf, 0.8, gap=rng.uniform(0.6, 0.8)
        )
    elif scene.terrain == "desert" and scene.water != "sea":
        for _ in range(rng.integers(1, 4)):
            place = 0.5 + rng.choice((-1.0, 1.0)) * rng.uniform(0.24, 0.46)
            foot = rng.uniform(0.96, 1.0) if scene.water == "lake" else rng.uniform(0.82, 0.97)
            image = terrain.cactus(rng, image, look, place, foot, rng.uniform(0.16, 0.27))
    return image


def _weather(rng: Generator, image: np.ndarray, look: Look, scene: Scene) -> np.ndarray:
    """Adds fog banks, falling snow, and a slight vignette."""
    if scene.weather == "foggy":
        bank = fractal(rng, 1.7, stretch=4.0, low=1)
        level = np.exp(-(((Y - look.base + 0.02) / 0.17) ** 2))
        thick = np.clip(0.20 + 0.50 * level + 0.22 * bank * (0.35 + level), 0.0, 0.93)
        image = mix(image, look.haze, thick)
    if scene.weather == "snowy":
        for count, radius, strength in ((70, 0.65, 0.55), (28, 1.15, 0.8)):
            image = _flakes(
                rng, image, count, radius, mix(look.light, SNOW, 0.6) * strength + (1 - strength) * look.haze
            )
    vignette = 1.0 - 0.16 * ((X - 0.5) ** 2 + (Y - 0.5) ** 2) * 2
    return image * vignette[..., None]


def _flakes(rng: Generator, image: np.ndarray, count: int, radius: float, colour: np.ndarray) -> np.ndarray:
    """Adds soft round snow flakes of a radius in pixels."""
    reach = 2
    span = np.arange(-reach, reach + 1)
    centre = rng.uniform(reach, CANVAS - 1 - reach, (count, 2))
    whole = np.floor(centre).astype(int)
    rows = whole[:, 0, None, None] + span[None, :, None]
    columns = whole[:, 1, None, None] + span[None, None, :]
    away = np.hypot(rows - centre[:, 0, None, None], columns - centre[:, 1, None, None])
    cover = np.zeros((CANVAS, CANVAS), np.float32)
    np.maximum.at(cover, (rows, columns), np.clip(radius + 0.5 - away, 0.0, 1.0).astype(np.float32))
    return mix(image, colour, cover * 0.85)
