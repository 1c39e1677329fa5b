"""The kinds of land, painted back to front in layers that fade into the haze of the air."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from train.painter.light import SNOW, Light
from train.painter.painting import Canvas, mix, on_grid, rgb, smoothstep
from train.painter.plants import Season, conifers, scattered


@dataclass(frozen=True)
class Land:
    """Where the land of a picture stands.

    Attributes:
      light, season: what it looks like.
      base: y of the line on which distant land stands.
      envelope: float32 [S], factor of the land's height per column (1 except at a coast).
    """

    light: Light
    season: Season
    base: float
    envelope: np.ndarray

    @property
    def snow(self) -> bool:
        return self.light.snow

    def settle(
        self,
        canvas: Canvas,
        height: np.ndarray,
        colour: np.ndarray,
        rows: slice,
        mist: float,
        depth: float = 0.12,
    ) -> None:
        """Paints a layer [R, S, 3] under its ridge line [S]; its foot drowns in haze by `mist`."""
        if mist > 0:
            foot = np.clip((canvas.y[rows] - (self.base - depth)) / (depth + 0.02), 0.0, 1.0)
            colour = mix(
                colour, self.light.colours.haze, foot * foot * np.float32(min(mist, 0.95)) + 0 * canvas.x
            )
        canvas.paint(colour, canvas.under(height, rows), rows)


def _peaks(
    canvas: Canvas, rng: Generator, land: Land, count: int, top: float, distance: float, rock: np.ndarray,
    snowline: float,
) -> None:  # fmt: skip
    """Paints a range of mountains, the lower ones in front of the higher."""
    centre = on_grid((np.arange(count) + 0.5 + rng.uniform(-0.35, 0.35, count)) / count)
    rise = on_grid((land.base - top) * rng.uniform(0.45, 0.82, count))
    # The highest stands well inside the picture, and on land.
    column = np.clip((centre * canvas.side).astype(int), 0, canvas.side - 1)
    shown = (np.abs(centre - rng.uniform(0.28, 0.72)) - land.envelope[column]).argmin()
    rise[shown] = land.base - on_grid(top)
    steep = rng.choice((0.85, 1.0, 1.2), count) * (0.55 + 0.20 * count / 3)
    for number in np.argsort(-rise):
        form = float(centre[number]), float(rise[number]), float(steep[number])
        _peak(canvas, rng, land, form, distance, rock, snowline)


def _peak(
    canvas: Canvas, rng: Generator, land: Land, form: tuple[float, float, float], distance: float, rock: np.ndarray,
    snowline: float,
) -> None:  # fmt: skip
    """Paints a mountain of a form (summit's x, height, slope): spurs that fan out from it, snow above a line."""
    light, (centre, rise, steep) = land.light, form
    skyline = rise - steep * np.abs(canvas.x[0] - centre) + 0.005 * canvas.line(rng, 1.5, low=6, high=16)
    height = (land.base - np.maximum(skyline, -0.04) * land.envelope).astype(np.float32)
    rows = canvas.rows(float(height.min()), land.base + 0.04)
    y = canvas.y[rows]
    crag = canvas.texture("soft", rng)[rows]
    gully = canvas.texture("rough", rng)[rows]
    drop = y - (land.base - np.float32(rise) * land.envelope[None, :])
    face = canvas.x + 0.008 * crag - centre - np.float32(rng.choice((-0.3, 0.0, 0.3))) * np.maximum(drop, 0.0)
    fan = face / (np.maximum(drop, 0.0) + 0.035) * np.float32(steep)
    spur = np.sin(fan * np.float32(3.6) + 0.2 * gully + 0.6 * crag)
    lit = 0.16 + 0.56 * smoothstep(-0.006, 0.010, face * light.side + 0.003 * gully) + 0.12 * spur
    lit = lit - 0.45 * np.clip(drop - 0.28, 0, 1)
    albedo = rock * (1.0 + 0.05 * crag[..., None])
    meadow = smoothstep(0.14, 0.02, land.base - y + 0.01 * gully)
    albedo = mix(albedo, land.season.grass * 0.62, 0.7 * meadow)
    above = snowline - y + 0.040 * spur + 0.005 * gully
    cover = smoothstep(-0.008, 0.010, above)
    if land.snow:
        # Rock shows on the dark side, below the summit and where spurs fall steeply.
        bare = smoothstep(0.42, 0.30, lit) * smoothstep(0.03, 0.05, drop + 0.030 * spur + 0.006 * gully)
        cover = np.maximum(cover, 1.0 - 0.85 * bare)
    # What lies in shadow takes the blue of the sky: a white mountain shows its faces by that alone.
    albedo = mix(albedo, mix(SNOW * rgb(0.60, 0.70, 0.86), SNOW, smoothstep(0.30, 0.62, lit)), cover)
    lit = lit + 0.12 * cover
    land.settle(
        canvas, height, light.shone(albedo, lit, distance), rows, 0.30 + 0.5 * light.weather.air * distance
    )


def rolling(
    canvas: Canvas, rng: Generator, land: Land, top: float, relief: float, distance: float, albedo, high=6, depth=0.3
) -> np.ndarray:  # fmt: skip
    """Paints a rolling layer, bright along its crest and darker below; returns its ridge line [S]."""
    light = land.light
    bumps = canvas.line(rng, 2.0, low=1, high=high)
    height = (land.base - (land.base - top + relief * bumps) * land.envelope).astype(np.float32)
    rows = canvas.rows(float(height.min()), min(float(height.max()) + depth, 1.0))
    grain, patch = canvas.texture("grain", rng)[rows], canvas.texture("soft", rng)[rows]
    tilt = np.clip(np.gradient(height) * canvas.side * light.side, -0.5, 0.5)[None, :]
    below = canvas.y[rows] - height[None, :]
    lit = 0.66 - 0.55 * tilt * np.exp(-np.maximum(below, 0.0) / 0.12) + 0.03 * grain + 0.03 * patch
    lit = lit + 0.16 * np.exp(-np.maximum(below, 0.0) / 0.02) - 1.7 * np.clip(below - 0.015, 0.0, 0.22)
    ground = albedo * (1.0 + 0.04 * patch[..., None])
    if land.snow:
        ground = mix(ground, SNOW, 0.93)
        lit = lit + 0.16 - 1.2 * np.clip(below - 0.03, 0.0, 0.2)
    canvas.paint(light.shone(ground, lit, distance), canvas.under(height, rows), rows)
    return height


def mountains(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints a range of peaks, with lower ones behind it."""
    rock = rgb(0.40, 0.38, 0.41) + rng.uniform(-0.04, 0.04, 3).astype(np.float32)
    top = rng.uniform(0.10, 0.18)
    _peaks(canvas, rng, land, 5, top + 0.14, 0.80, rock, top + 0.30)
    _peaks(canvas, rng, land, int(rng.integers(2, 4)), top, 0.36, rock, top + 0.20)
    foot = rolling(canvas, rng, land, land.base - 0.045, 0.012, 0.34, land.season.grass * 0.62, depth=0.08)
    woods(canvas, rng, land, np.minimum(foot + 0.03, land.base), 0.080, 0.048, 0.24, 0.85)


def hills(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints swelling meadows with scattered trees."""
    shift = rng.uniform(-0.04, 0.04, 3).astype(np.float32)
    top = land.base - rng.uniform(0.17, 0.24)
    grass = land.season.grass + shift
    far = mix(grass, rgb(0.42, 0.55, 0.46), 0.4)
    for depth, green in enumerate((far, mix(far, grass, 0.6), grass)):
        rise = top + (land.base - top) * (0.34 * depth)
        distance = 0.75 - 0.27 * depth
        height = rolling(canvas, rng, land, rise, 0.045 - 0.008 * depth, distance, green, depth=0.22)
        if depth > 0:
            scattered(canvas, rng, land.light, land.season.leaves, height, 0.05, 0.050 + 0.030 * depth, 0.110,
                      distance - 0.05, 0.7, room=land.envelope > 0.12, lowest=land.base)  # fmt: skip


def woods(
    canvas: Canvas, rng: Generator, land: Land, feet: np.ndarray, height: float, spacing: float, distance: float,
    density: float = 1.0, gap: float = 0.0,
) -> None:  # fmt: skip
    """Paints a row of trees of the season: conifers, and in spring and autumn round ones among them."""
    room = land.envelope > 0.12
    conifers(canvas, rng, land.light, land.season, feet, height, spacing, distance, density, gap, room=room)
    if land.season.round_share:
        share = density * land.season.round_share
        scattered(canvas, rng, land.light, land.season.leaves, feet - 0.004, 0.008, height * 0.82,
                  max(spacing * 1.15, 0.035), distance, share, gap, room)  # fmt: skip


def dune(
    canvas: Canvas, rng: Generator, land: Land, top: float, relief: float, distance: float, sand: np.ndarray,
    count: int,
) -> None:  # fmt: skip
    """Paints dunes: asymmetric crests, sharp between a lit and a dark flank, and wind ripples."""
    light, side = land.light, land.light.side
    centre = ((np.arange(count) + rng.uniform(0.2, 0.8, count)) / count).astype(np.float32)
    rise = (relief * rng.uniform(0.6, 1.1, count)).astype(np.float32)
    dx = canvas.x[0][None, :] - centre[:, None]
    steep, gentle = rng.uniform(0.30, 0.42), rng.uniform(0.55, 0.75)
    across = np.where(dx * side < 0, -dx * side / gentle * count / 2, dx * side / steep * count / 2)
    bumps = rise[:, None] * np.clip(1.0 - across, 0.0, 1.0) ** 1.25
    owner = bumps.argmax(0)
    swell = bumps.max(0) + 0.006 * canvas.line(rng, 1.8, high=12)
    height = (land.base - (land.base - top + swell) * land.envelope).astype(np.float32)
    rows = canvas.rows(float(height.min()))
    y = canvas.y[rows]
    wind = canvas.texture("soft", rng)[rows]
    bend = rng.uniform(0.5, 1.3) * np.clip(y - height.min(), 0, 1) * rng.choice((-1.0, 1.0))
    face = ((canvas.x - centre[owner][None, :] + bend * 0.45 + 0.012 * wind) * side).astype(np.float32)
    # Ripples grow towards the viewer; far away they would be finer than a pixel.
    ripples = np.sin((y * 95 + 18 * canvas.x * np.float32(rng.uniform(-1, 1)) + 2.2 * wind) * 0.9)
    # Away from the crest both flanks level out, so neighbouring dunes meet without an edge.
    levelling = np.exp(-((face / 0.15) ** 2))
    lit = 0.62 + levelling * (0.68 * smoothstep(-0.007, 0.007, face) - 0.42) + 0.06 * wind
    lit = lit + (0.02 * (1 - distance)) * ripples
    albedo = np.broadcast_to(sand, (*wind.shape, 3))
    if land.snow:
        albedo = mix(albedo, SNOW, smoothstep(-1.2, 0.2, wind) * 0.85)
    land.settle(canvas, height, light.shone(albedo, lit, distance), rows, 0.12 * light.weather.air * distance)


def desert(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints dunes, in half of the pictures in front of table mountains."""
    sand = rgb(0.95, 0.72, 0.44) + rng.uniform(-0.04, 0.04, 3).astype(np.float32)
    if rng.random() < 0.5:
        _mesas(canvas, rng, land, sand)
    for distance, rise, relief in ((0.75, 0.10, 0.06), (0.45, 0.06, 0.11), (0.18, 0.0, 0.10)):
        dune(canvas, rng, land, land.base - rise, relief, distance, sand, int(rng.integers(2, 4)))


def _mesas(canvas: Canvas, rng: Generator, land: Land, sand: np.ndarray) -> None:
    """Paints far table mountains."""
    height = np.full(canvas.side, land.base, np.float32)
    for place in rng.permutation((0.16, 0.40, 0.64, 0.88))[: rng.integers(2, 4)]:
        wide, tall = rng.uniform(0.05, 0.13), rng.uniform(0.20, 0.29)
        away = np.abs(canvas.x[0] - place) + 0.004 * canvas.line(rng, 1.0, low=8, high=40)
        rise = 0.72 * smoothstep(wide, wide - 0.02, away) + 0.28 * smoothstep(wide + 0.06, wide - 0.02, away)
        height = np.minimum(height, land.base - tall * rise * land.envelope)
    rows = canvas.rows(float(height.min()), land.base + 0.02)
    lit, tone = rock_face(canvas, rng, land.light, rows)
    stone = sand * rgb(0.82, 0.62, 0.55) * (1.0 + tone)[..., None]
    if land.snow:
        stone = mix(stone, SNOW, 0.6)
    canvas.paint(land.light.shone(stone, lit, 0.85), canvas.under(height, rows), rows)


def forest(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints rows of trees, the nearer, the taller."""
    rolling(canvas, rng, land, land.base - 0.25, 0.04, 1.0, land.season.needles.mean(0) * 1.4, depth=0.2)
    rows = (
        (0.17, 0.15, 0.050, 0.80),
        (0.08, 0.22, 0.075, 0.42),
        (-0.02, 0.29, 0.110, 0.06),
    )
    shorter = float(np.clip(land.envelope.mean() + 0.35, 0.0, 1.0))
    for lift, tall, spacing, distance in rows:
        feet = land.base - (lift + 0.02 * canvas.line(rng, 1.8, high=8)) * land.envelope
        shadow = (feet - 0.05 * tall * land.envelope).astype(np.float32)
        part = canvas.rows(float(shadow.min()), float(shadow.max()) + 0.3)
        dark = land.light.shone(land.season.needles.mean(0), 0.16, distance)
        if land.snow:
            dark = mix(dark, land.light.shone(SNOW, 0.5, distance), 0.35)
        canvas.paint(dark, canvas.under(shadow, part), part)
        woods(canvas, rng, land, feet.astype(np.float32), tall * shorter, spacing, distance)


def cliffs(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints headlands of layered rock, the nearer the larger, with grass on their flat tops."""
    light = land.light
    stone = mix(rgb(0.86, 0.74, 0.58), rgb(0.74, 0.50, 0.38), rng.random())
    sign = 1.0 if land.envelope[0] >= land.envelope[-1] else -1.0
    layers = ((0.66, 0.17, 0.88), (0.34, 0.25, 0.62), (0.10, 0.34, 0.36))
    for number, (distance, tall, reach) in enumerate(layers):
        x = canvas.x[0] if sign > 0 else 1.0 - canvas.x[0]
        edge = x - reach + 0.010 * canvas.line(rng, 1.6, low=4, high=16)
        steps = smoothstep(0.02, -0.02, edge) * 0.72 + smoothstep(0.10, 0.05, edge) * 0.28
        tops = tall * (1.0 - 0.25 * np.clip(-edge, 0, 1)) + 0.010 * canvas.line(rng, 1.8, low=1, high=8)
        height = (
            land.base + 0.02 - np.maximum(tops * steps, -0.05) * np.minimum(land.envelope * 2.0, 1.0)
        ).astype(np.float32)
        _cliff_face(canvas, rng, land, height, land.base + 0.04, distance, stone)
        if number > 0:
            flat = (height + 0.004).astype(np.float32)
            gap_middle = 1.0 if sign > 0 else 0.0
            conifers(canvas, rng, light, land.season, flat, 0.05 + 0.03 * number, 0.05, distance, 0.5,
                     gap=2 * (1.02 - reach), middle=gap_middle)  # fmt: skip


def rock_face(canvas: Canvas, rng: Generator, light: Light, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Returns (light, tone) [R, S] of a steep face: buttresses with a lit and a dark side, and darker ledges."""
    soft, tall = canvas.texture("soft", rng)[rows], canvas.texture("tall", rng)[rows]
    bends = np.cumsum(1.0 + 0.7 * np.tanh(canvas.line(rng, 1.2, low=4, high=24))) / canvas.side
    across = (bends[None, :] * np.float32(rng.uniform(5.0, 6.5)) + 0.16 * soft + 0.04 * tall) * light.side
    part = np.mod(across.astype(np.float32), 1.0)
    face = smoothstep(0.0, 0.08, part) * smoothstep(0.64, 0.54, part)
    ledge = np.mod((canvas.y[rows] + 0.010 * soft) * np.float32(1 / 0.11) + 0.25 * face, 1.0)
    shadow = smoothstep(0.0, 0.10, ledge) * smoothstep(0.42, 0.10, ledge)
    return 0.26 + 0.50 * face - 0.12 * shadow + 0.02 * tall, 0.03 * soft - 0.06 * shadow


def _cliff_face(
    canvas: Canvas, rng: Generator, land: Land, height: np.ndarray, bottom: float, distance: float, stone: np.ndarray
) -> None:  # fmt: skip
    """Paints a wall of rock under a line [S]: buttresses, ledges, and grass on top."""
    light = land.light
    rows = canvas.rows(float(height.min()), bottom)
    below = canvas.y[rows] - height[None, :]
    lit, tone = rock_face(canvas, rng, light, rows)
    albedo = stone * (1.0 + tone)[..., None]
    if land.snow:
        albedo = mix(albedo, SNOW, 0.8 * smoothstep(-0.02, -0.08, tone))
    cap = smoothstep(0.026, 0.016, below + 0.006 * canvas.texture("rough", rng)[rows])
    albedo = mix(albedo, SNOW if land.snow else land.season.grass * 0.9, cap)
    lit = lit + (0.78 - lit) * cap
    canvas.paint(light.shone(albedo, lit, distance), canvas.under(height, rows), rows)


def ground(canvas: Canvas, rng: Generator, land: Land, albedo: np.ndarray, height: np.ndarray) -> None:
    """Paints the plain from the line `height` [S] to the lower edge, its texture growing towards the viewer."""
    light = land.light
    rows = canvas.rows(float(height.min()))
    near = np.clip((canvas.y[rows] - land.base) / (1.001 - land.base), 0.0, 1.0)
    fine, coarse = canvas.texture("wave", rng)[rows], canvas.texture("grain", rng)[rows]
    lit = 0.66 + 0.04 * (fine * (1.0 - near) + coarse * near) - 0.26 * near
    surface = albedo * (1.0 + 0.04 * coarse[..., None])
    if land.snow:
        surface = mix(surface, SNOW, 0.93)
        lit = lit + 0.12
    colour = light.shone(surface, lit)
    far = (1.0 - near) ** 3 * np.float32(0.45 * light.weather.air)
    colour = mix(colour, light.colours.haze, far + 0 * canvas.x)
    canvas.paint(colour, canvas.under(height, rows), rows)
