"""The four kinds of terrain, painted back to front in layers that fade into the haze of the air."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from train.painter.painting import CANVAS, X, Y, below, fractal, line, mix, rgb, smoothstep, tree_row

SNOW = rgb(0.94, 0.96, 1.0)


@dataclass(frozen=True)
class Look:
    """Light and air of a scene: colours are float32 [3].

    Attributes:
      light: colour of lit surfaces; shade: of surfaces in shadow (both multiply the albedo).
      haze: colour into which distance fades; air: strength of that fading, 0 to 1.
      side: -1 where the light comes from the left, 1 from the right.
      snow: whether snow lies on everything.
      base: y of the line on which distant terrain stands.
      envelope: float32 [S], factor of the terrain's height per column (1 except at a coast).
    """

    light: np.ndarray
    shade: np.ndarray
    haze: np.ndarray
    air: float
    side: float
    snow: bool
    base: float
    envelope: np.ndarray

    def colour(self, albedo: np.ndarray, lit: np.ndarray, distance: float) -> np.ndarray:
        """Shades an albedo [3] or [S, S, 3] by light 0 to 1 [S, S], behind `distance` (0 near, 1 far) of air."""
        shone = albedo * (self.shade + (self.light - self.shade) * np.clip(lit, 0.0, 1.0)[..., None])
        return shone + (self.haze - shone) * np.float32(min(distance * self.air, 1.0))


def _settle(image: np.ndarray, look: Look, height: np.ndarray, colour: np.ndarray, mist: float) -> np.ndarray:
    """Paints a layer under its ridge line; its foot drowns in haze by `mist`."""
    foot = np.clip((Y - height[None, :]) / (look.base + 0.02 - height[None, :] + 0.05), 0.0, 1.0)
    colour = mix(colour, look.haze, foot * foot * mist)
    return mix(image, colour, below(height))


def _peaks(
    rng: Generator,
    image,
    look: Look,
    count: int,
    top: float,
    distance: float,
    rock: np.ndarray,
    snowline: float,
):
    """Paints a range of mountains: peaks with a lit and a dark face, gullies, and snow above the snow line."""
    centre = (np.arange(count) + 0.5 + rng.uniform(-0.35, 0.35, count)) / count
    rise = (look.base - top) * rng.uniform(0.5, 0.85, count)
    rise[rng.integers(count)] = look.base - top
    steep = rng.uniform(0.85, 1.35, count) * (0.55 + 0.22 * count / 3)
    crag = fractal(rng, 1.7, low=3)
    warped = X + 0.022 * crag
    elevation = rise[:, None] - steep[:, None] * np.abs(X - centre[:, None])
    skyline = elevation.max(0) + 0.011 * line(rng, 1.1, low=7, high=56)
    skyline = np.maximum(skyline, 0.05 + 0.012 * line(rng, 1.2, low=2))
    height = (look.base - skyline * look.envelope).astype(np.float32)

    inside = (
        rise[:, None, None] - steep[:, None, None] * np.abs(warped[None] - centre[:, None, None])
    ).astype(np.float32)
    owner = inside.argmax(0)
    spine = centre[owner] + rng.uniform(-0.35, 0.35, count)[owner] * (Y - look.base + rise[owner])
    face = (warped - spine) * look.side
    gully = fractal(rng, 1.5, stretch=0.6, low=5)
    lit = 0.20 + 0.68 * smoothstep(-0.012, 0.03, face + 0.012 * gully) + 0.11 * gully
    drop = Y - height[None, :]
    albedo = rock * (1.0 + 0.10 * crag[..., None])
    above = snowline - (Y + 0.042 * gully + 0.015 * crag - 0.03 * smoothstep(0.0, 0.1, face))
    cover = smoothstep(-0.01, 0.015, above)
    if look.snow:
        cover = 0.45 + 0.5 * smoothstep(-1.6, -0.2, gully + 0.4 * crag)
    albedo = mix(np.broadcast_to(albedo, image.shape), SNOW, cover)
    lit = lit + 0.08 * cover - 0.6 * np.clip(drop - 0.3, 0, 1)
    return _settle(image, look, height, look.colour(albedo, lit, distance), 0.35 + 0.4 * look.air)


def _rolling(
    rng: Generator, image, look: Look, top: float, bottom_relief: float, distance: float, albedo, high=10
):
    """Paints a rolling layer with soft shading; returns the image and its ridge line."""
    relief = line(rng, 1.9, low=1, high=high)
    height = (look.base - (look.base - top + bottom_relief * relief) * look.envelope).astype(np.float32)
    grain = fractal(rng, 1.25, stretch=2.2, low=3)
    tilt = np.gradient(height) * CANVAS
    lit = 0.55 + 0.5 * np.clip(tilt * look.side * -1.2, -0.6, 0.6)[None, :] + 0.12 * grain
    lit = lit - 1.1 * np.clip(Y - height[None, :] - 0.02, 0.0, 0.30)
    ground = albedo * (1.0 + 0.10 * fractal(rng, 1.6, stretch=1.5, low=2)[..., None])
    if look.snow:
        ground = mix(ground, SNOW, 0.93 * smoothstep(-3.0, -1.2, grain))
    return _settle(image, look, height, look.colour(ground, lit, distance), 0.25 * look.air), height


def plant(
    rng: Generator,
    image,
    look: Look,
    base,
    height: float,
    spacing: float,
    kind: str,
    distance: float,
    leaf,
    density=1.0,
    gap=0.0,
):
    """Paints a row of trees on the line `base` [S], lit from the side of the sun, under snow when it snows."""
    mask, light = tree_row(rng, base, height, spacing, kind, density, gap)
    grain = fractal(rng, 1.0, low=6)
    lit = 0.42 + 0.38 * light * look.side + 0.16 * grain
    albedo = leaf * (1.0 + 0.10 * grain[..., None])
    if look.snow:
        albedo = mix(albedo, SNOW, 0.25 + 0.5 * smoothstep(-0.8, 1.2, grain))
    return mix(image, look.colour(albedo, lit, distance), mask)


def mountains(rng: Generator, image: np.ndarray, look: Look) -> np.ndarray:
    rock = rgb(0.38, 0.35, 0.37) + rng.uniform(-0.04, 0.04, 3).astype(np.float32)
    top = rng.uniform(0.10, 0.20)
    image = _peaks(rng, image, look, 5, top + 0.13, 0.75, rock, top + 0.28)
    image = _peaks(rng, image, look, int(rng.integers(2, 4)), top, 0.32, rock, top + 0.20)
    image, foot = _rolling(rng, image, look, look.base - 0.045, 0.012, 0.28, rgb(0.25, 0.33, 0.22))
    return plant(rng, image, look, foot + 0.03, 0.05, 0.024, "conifer", 0.18, rgb(0.10, 0.20, 0.14), 0.85)


def hills(rng: Generator, image: np.ndarray, look: Look) -> np.ndarray:
    greens = (rgb(0.42, 0.55, 0.42), rgb(0.42, 0.60, 0.32), rgb(0.38, 0.60, 0.22))
    shift = rng.uniform(-0.04, 0.04, 3).astype(np.float32)
    top = look.base - rng.uniform(0.17, 0.24)
    for depth, green in enumerate(greens):
        rise = top + (look.base - top) * (0.34 * depth)
        image, height = _rolling(
            rng, image, look, rise, 0.045 - 0.008 * depth, 0.75 - 0.3 * depth, green + shift
        )
        if depth > 0:
            image = plant(
                rng, image, look, height + 0.025, 0.028 + 0.022 * depth, 0.05, "round", 0.45 - 0.2 * depth,
                rgb(0.16, 0.32, 0.12), 0.55,
            )  # fmt: skip
    return image


def _dune(
    rng: Generator,
    image,
    look: Look,
    top: float,
    relief: float,
    distance: float,
    sand: np.ndarray,
    count: int,
):
    """Paints a dune: an asymmetric crest, sharp between its lit and its dark flank, and wind ripples."""
    centre = (np.arange(count) + rng.uniform(0.2, 0.8, count)) / count
    rise = relief * rng.uniform(0.6, 1.1, count)
    dx = X[0][None, :] - centre[:, None]
    steep, gentle = rng.uniform(0.30, 0.42), rng.uniform(0.55, 0.75)
    across = np.where(
        dx * look.side < 0, -dx * look.side / gentle * count / 2, dx * look.side / steep * count / 2
    )
    bumps = (rise[:, None] * np.clip(1.0 - across, 0.0, 1.0) ** 1.25).max(0)
    height = (look.base - (look.base - top + bumps + 0.006 * line(rng, 1.8, high=12)) * look.envelope).astype(
        np.float32
    )
    wind = fractal(rng, 1.6, low=2)
    owner = (rise[:, None] * np.clip(1.0 - across, 0.0, 1.0) ** 1.25).argmax(0)
    bend = rng.uniform(0.5, 1.3) * np.clip(Y - height.min(), 0, 1) * rng.choice((-1.0, 1.0))
    face = (X - centre[owner][None, :] + bend * 0.45 + 0.012 * wind) * look.side
    ripples = np.sin((Y * 150 + 26 * X * rng.uniform(-1, 1) + 2.2 * wind) * (0.55 + 0.25 * distance))
    # Away from the crest both flanks level out, so neighbouring dunes meet without an edge.
    levelling = np.exp(-((face / 0.15) ** 2))
    lit = 0.60 + levelling * (0.68 * smoothstep(-0.010, 0.010, face) - 0.42) + 0.045 * ripples + 0.06 * wind
    albedo = np.broadcast_to(sand, image.shape) * (
        1.0 + 0.05 * fractal(rng, 1.2, stretch=3, low=3)[..., None]
    )
    if look.snow:
        albedo = mix(albedo, SNOW, smoothstep(-1.2, 0.2, wind) * 0.85)
    return _settle(image, look, height, look.colour(albedo, lit, distance), 0.15 * look.air)


def desert(rng: Generator, image: np.ndarray, look: Look) -> np.ndarray:
    sand = rgb(0.93, 0.70, 0.42) + rng.uniform(-0.04, 0.04, 3).astype(np.float32)
    for distance, rise, relief in ((0.75, 0.10, 0.06), (0.45, 0.06, 0.11), (0.18, 0.0, 0.10)):
        image = _dune(rng, image, look, look.base - rise, relief, distance, sand, int(rng.integers(2, 4)))
    return image


def forest(rng: Generator, image: np.ndarray, look: Look) -> np.ndarray:
    leaf = rgb(0.13, 0.28, 0.17) + rng.uniform(-0.03, 0.03, 3).astype(np.float32)
    image, _ = _rolling(rng, image, look, look.base - 0.28, 0.05, 1.1, rgb(0.20, 0.33, 0.26))
    rows = (
        (0.19, 0.11, 0.024, 0.95),
        (0.12, 0.17, 0.040, 0.65),
        (0.05, 0.24, 0.060, 0.34),
        (-0.03, 0.29, 0.085, 0.06),
    )
    for lift, tall, spacing, distance in rows:
        feet = look.base - (lift + 0.02 * line(rng, 1.8, high=8)) * look.envelope
        shadow = look.colour(
            leaf * (0.9 + 0.15 * fractal(rng, 1.2, low=4)[..., None]), np.full_like(Y + X, 0.25), distance
        )
        image = mix(image, shadow, below((feet - 0.05 * tall).astype(np.float32)))
        squeezed = tall * float(np.clip(look.envelope.mean() + 0.1, 0.0, 1.0))
        image = plant(rng, image, look, feet.astype(np.float32), squeezed, spacing, "conifer", distance, leaf)
    return image


def near_layers(rng: Generator, image: np.ndarray, look: Look, kind: str, albedo: np.ndarray) -> np.ndarray:
    """Paints the land before the terrain: swelling meadows, dunes or a clearing, in two layers."""
    room = 1.0 - look.base
    full = np.ones(CANVAS, np.float32)
    for depth, (share, distance) in enumerate(((0.30, 0.12), (0.66, 0.0))):
        crest = look.base + share * room
        close = replace(look, base=1.0, envelope=full)
        if kind == "desert":
            image = _dune(rng, image, close, crest + 0.05, 0.10 + 0.03 * depth, distance, albedo, 1)
            continue
        tint = albedo * rng.uniform(0.88, 1.08) * (1.0 - 0.10 * depth)
        relief = 0.05 if kind == "hills" else 0.03
        image, height = _rolling(rng, image, close, crest, relief * 0.6, distance, tint, 4)
        if kind == "hills" and depth == 0:
            image = plant(
                rng, image, look, height + 0.03, 0.085, 0.11, "round", 0.1, rgb(0.15, 0.32, 0.10), 0.5
            )
        elif kind in ("mountains", "forest") and depth == 0:
            image = plant(
                rng, image, look, height + 0.04, 0.15, 0.06, "conifer", 0.06, rgb(0.10, 0.22, 0.14), 0.7,
                gap=rng.uniform(0.3, 0.7),
            )  # fmt: skip
    return image


def cactus(
    rng: Generator, image: np.ndarray, look: Look, place: float, foot: float, height: float
) -> np.ndarray:
    """Returns a saguaro with two raised arms at (place, foot)."""
    away = np.full((CANVAS, CANVAS), 1.0, np.float32)
    parts = [(place, foot, foot - height, 0.105 * height)]
    for sign in (-1.0, 1.0):
        elbow, reach = foot - height * rng.uniform(0.35, 0.6), sign * height * rng.uniform(0.22, 0.30)
        parts += [(place + reach * step / 4, elbow, elbow, 0.07 * height) for step in range(4)]
        parts.append((place + reach, elbow, elbow - height * rng.uniform(0.18, 0.32), 0.07 * height))
    for x, low, high, radius in parts:
        away = np.minimum(away, np.hypot(X - x, Y - np.clip(Y, high, low)) - radius)
    lit = 0.50 + 0.34 * look.side * np.clip((X - place) / (0.1 * height), -1.0, 1.0) * np.ones_like(Y)
    albedo = np.broadcast_to(rgb(0.26, 0.42, 0.20), image.shape)
    if look.snow:
        albedo = mix(albedo, SNOW, 0.45 * smoothstep(-0.6, 0.8, fractal(rng, 1.0, low=6)))
    return mix(image, look.colour(albedo, lit, 0.0), np.clip(0.5 - away * CANVAS, 0.0, 1.0))


def ground(
    rng: Generator, image: np.ndarray, look: Look, albedo: np.ndarray, height: np.ndarray
) -> np.ndarray:
    """Paints the plain from the line `height` [S] to the lower edge, its texture growing towards the viewer."""
    near = np.clip((Y - look.base) / (1.001 - look.base), 0.0, 1.0)
    fine = fractal(rng, 1.2, stretch=4.0, low=4)
    coarse = fractal(rng, 1.5, stretch=2.5, low=2)
    texture = fine * (1.0 - near) + coarse * near
    lit = 0.60 + 0.16 * texture - 0.22 * near
    surface = albedo * (1.0 + 0.13 * coarse[..., None])
    if look.snow:
        surface = mix(surface, SNOW, 0.95 * smoothstep(-3.2, -1.6, coarse))
    colour = look.colour(surface, lit, 0.0)
    colour = mix(colour, look.haze, (1.0 - near) ** 3 * 0.45 * look.air)
    return mix(image, colour, below(height))
