"""What people built: a town with its church, and boats on the water."""

import numpy as np
from numpy.random import Generator

from train.painter.light import SNOW, Light
from train.painter.painting import CELL, Canvas, mix, on_grid, rgb
from train.painter.plants import round_trees
from train.painter.terrain import Land, rolling

_WALLS = (rgb(0.96, 0.92, 0.82), rgb(0.94, 0.82, 0.62), rgb(0.90, 0.70, 0.58), rgb(0.86, 0.88, 0.88))
_ROOFS = (rgb(0.78, 0.32, 0.20), rgb(0.68, 0.26, 0.20), rgb(0.82, 0.42, 0.24), rgb(0.40, 0.40, 0.48))
_LAMP = rgb(1.0, 0.80, 0.36)


def _lamps(light: Light) -> bool:
    """Tells whether windows are lit."""
    return light.hour in ("dusk", "night") or light.weather.dark < 0.9


def _window(
    canvas: Canvas, light: Light, x: float, y: float, wide: float, high: float, distance: float
) -> None:
    """Paints a window centred at (x, y), warm where lamps are lit."""
    if _lamps(light):
        canvas.glow(x, y, wide * 1.5, high * 1.3, _LAMP, 0.45)
        colour = light.behind(_LAMP, distance * 0.4)
    else:
        colour = light.shone(rgb(0.26, 0.30, 0.38), 0.6, distance)
    corners = [(x - wide / 2, y - high / 2), (x + wide / 2, y - high / 2), (x + wide / 2, y + high / 2)]
    canvas.polygon([*corners, (x - wide / 2, y + high / 2)], colour)


def _house(
    canvas: Canvas, rng: Generator, light: Light, x: float, foot: float, wide: float, distance: float
) -> None:
    """Paints a house seen across a corner: a gable and a long side, one of them lit."""
    wall = _WALLS[rng.integers(len(_WALLS))]
    roof = SNOW if light.snow else _ROOFS[rng.integers(len(_ROOFS))]
    turn = float(rng.choice((-1.0, 1.0)))
    high, gable = wide * rng.choice((0.52, 0.70)), wide * 0.42
    peak = gable * 0.62
    front, back = x - turn * wide / 2, x + turn * wide / 2
    corner = front + turn * gable
    lit_gable, lit_side = (0.95, 0.50) if turn == -light.side else (0.45, 0.92)
    top, ridge = foot - high, foot - high - peak
    middle = (front + corner) / 2
    eaves = 0.05 * wide

    def face(points, colour, lit):
        points = points if turn > 0 else points[::-1]
        canvas.polygon(points, light.shone(colour, lit, distance))

    face([(corner, top), (back, top), (back, foot), (corner, foot)], wall, lit_side)
    face([(front, top), (corner, top), (corner, foot), (front, foot)], wall, lit_gable)
    face([(front, top + 0.01 * wide), (middle, ridge), (corner, top + 0.01 * wide)], wall, lit_gable)
    face([(middle, ridge - eaves * 0.6), (back, ridge - eaves * 0.6), (back + turn * eaves, top + eaves),
          (corner + turn * eaves * 0.4, top + eaves)], roof, lit_side)  # fmt: skip
    # The near edge of the roof.
    for end in (front - turn * eaves * 0.6, corner + turn * eaves * 0.4):
        colour = light.shone(roof, 0.75 * lit_gable, distance)
        canvas.stroke([(middle, ridge - eaves * 0.3), (end, top + eaves)], max(0.045 * wide, 0.005), colour)
    size = wide * 0.17
    _window(canvas, light, middle, foot - high * 0.55, size, size * 1.3, distance)
    for share in (0.5,):
        place = corner + (back - corner) * share
        _window(canvas, light, place, foot - high * 0.55, size, size * 1.3, distance)


def _church(canvas: Canvas, light: Light, x: float, foot: float, tall: float, distance: float) -> None:
    """Paints a church: a nave, and a tower with a clock under a pointed spire."""
    wall, slate = rgb(0.95, 0.92, 0.86), rgb(0.34, 0.38, 0.46)
    w = tall * 0.115
    turn, lit, dark = light.side, 0.95, 0.52
    nave = x - turn * tall * 0.30
    left, right = min(nave, x) - w * 0.6, max(nave, x) + w * 0.6
    roof = SNOW if light.snow else rgb(0.66, 0.28, 0.22)
    canvas.polygon([(left, foot - tall * 0.26), (right, foot - tall * 0.26), (right, foot), (left, foot)],
                   light.shone(wall, 0.75, distance))  # fmt: skip
    canvas.polygon(
        [(left + 0.05 * tall, foot - tall * 0.40), (right - 0.05 * tall, foot - tall * 0.40),
         (right + 0.01 * tall, foot - tall * 0.24), (left - 0.01 * tall, foot - tall * 0.24)],
        light.shone(roof, 0.75, distance),
    )  # fmt: skip
    for share in (0.22, 0.5):
        _window(
            canvas, light, nave + (x - nave) * share, foot - tall * 0.12, tall * 0.04, tall * 0.11, distance
        )
    top, point = foot - tall * 0.60, foot - tall
    for edge, shade in ((-w, lit if turn < 0 else dark), (w, lit if turn > 0 else dark)):
        a, b = min(x, x + edge), max(x, x + edge)
        canvas.polygon([(a, top), (b, top), (b, foot), (a, foot)], light.shone(wall, shade, distance))
        a, b = (x + edge * 1.25, x) if edge < 0 else (x, x + edge * 1.25)
        corners = [(x, point), (b, top + 0.01 * tall), (a, top + 0.01 * tall)]
        canvas.polygon(corners, light.shone(SNOW if light.snow and edge < 0 else slate, shade, distance))
    dial, size = light.shone(rgb(0.25, 0.25, 0.3), 0.6, distance), 0.030 * tall
    canvas.glow(x, top + 0.10 * tall, size, size, dial, 0.9)
    _window(canvas, light, x, foot - tall * 0.28, tall * 0.045, tall * 0.10, distance)


def town(canvas: Canvas, rng: Generator, land: Land) -> None:
    """Paints a town on a rise: houses in rows, the church above them, trees between."""
    light, grass = land.light, land.season.grass
    rolling(
        canvas, rng, land, land.base - 0.20, 0.04, 0.78, mix(grass, rgb(0.42, 0.55, 0.46), 0.5), depth=0.2
    )
    # Where the coast leaves room for it.
    weight = np.maximum(land.envelope, 0.0) ** 2
    coast = land.envelope.min() < 1
    middle = float((canvas.x[0] * weight).sum() / weight.sum()) if coast else rng.uniform(0.35, 0.65)
    reach = 0.26 if coast else 0.46
    rise = np.exp(-(((canvas.x[0] - middle) / 0.30) ** 2)).astype(np.float32)
    spot = float(on_grid(middle + rng.uniform(-0.08, 0.08)))
    rows = ((0.105, 0.110, 0.30), (0.0, 0.142, 0.10))
    for number, (lift, wide, distance) in enumerate(rows):
        height = (land.base + 0.012 - (0.02 + lift * rise) * np.minimum(1.6 * land.envelope, 1.0)).astype(
            np.float32
        )
        part = canvas.rows(float(height.min()) - 0.02, land.base + 0.03)
        lit = 0.6 + 0.1 * canvas.texture("grain", rng)[part]
        albedo = SNOW if land.snow else grass * 0.9
        canvas.paint(light.shone(albedo, lit, distance), canvas.under(height - 0.014, part), part)
        if number == 1:
            foot = float(on_grid(float(height[int(np.clip(spot, 0, 0.999) * canvas.side)]) - 0.03 + CELL / 4))
            _church(canvas, light, spot, foot, 0.34, 0.22)
        count = int(2 * reach / (wide * 1.12))
        places = middle - reach + (np.arange(count) + 0.5 + rng.uniform(-0.2, 0.2, count)) * 2 * reach / count
        places = on_grid(places)
        built = rng.random(count) < 0.86
        for place, stands in zip(places, built, strict=True):
            column = int(np.clip(place, 0, 0.999) * canvas.side)
            if stands and land.envelope[column] > 0.45:
                foot = on_grid(float(height[column]) + CELL / 4)
                _house(canvas, rng, light, float(place), float(foot), wide, distance)
        green = places[~built] if number else places[:0]
        trees = np.concatenate(
            [green, middle + reach * np.array((-1.06, 1.06)) + rng.uniform(-0.03, 0.03, 2)]
        )
        column = np.clip(trees * canvas.side, 0, canvas.side - 1).astype(int)
        trees, column = trees[land.envelope[column] > 0.45], column[land.envelope[column] > 0.45]
        tall = np.full(len(trees), 0.95 * wide)
        round_trees(canvas, rng, light, land.season.leaves, trees, height[column] + 0.006, tall, distance)


def boat(canvas: Canvas, rng: Generator, light: Light, x: float, y: float, size: float, sails: bool) -> None:
    """Paints a boat at the waterline (x, y) above its reflection; `size` is its length."""
    turn = float(rng.choice((-1.0, 1.0)))
    hull = (rgb(0.62, 0.18, 0.15), rgb(0.14, 0.24, 0.42), rgb(0.42, 0.27, 0.16))[int(rng.integers(3))]
    cloth = (rgb(0.98, 0.96, 0.90), rgb(0.98, 0.96, 0.90), rgb(0.86, 0.36, 0.22))[int(rng.integers(3))]
    shadow = light.colours.shade * rgb(0.30, 0.38, 0.45)
    canvas.glow(x, y + 0.03 * size, 0.62 * size, 0.07 * size, shadow, 0.75)
    # Upside down first: what the water reflects, darker and shorter.
    for flip, opacity in ((-0.62, 0.42), (1.0, 1.0)):

        def at(*points, flip=flip):
            corners = [(x + turn * px * size, y - py * size * flip) for px, py in points]
            return corners if turn * flip > 0 else corners[::-1]

        wood, rim = light.shone(hull, 0.7, 0.08), light.shone(rgb(0.95, 0.93, 0.88), 0.85, 0.08)
        if sails:
            mast, sail, jib = (
                light.shone(rgb(0.30, 0.22, 0.16), 0.5),
                *(light.shone(cloth, lit) for lit in (0.95, 0.62)),
            )
            canvas.stroke(at((0.0, 0.1), (0.0, 1.02)), 0.030 * size, mast, opacity)
            canvas.polygon(at((0.03, 0.98), (0.50, 0.24), (0.03, 0.22)), sail, opacity)
            canvas.polygon(at((-0.03, 0.88), (-0.03, 0.22), (-0.40, 0.24)), jib, opacity)
        else:
            coat, skin = light.shone(rgb(0.20, 0.24, 0.34), 0.5), light.shone(rgb(0.85, 0.62, 0.48), 0.7)
            canvas.polygon(at((-0.10, 0.42), (0.10, 0.42), (0.14, 0.12), (-0.14, 0.12)), coat, opacity)
            canvas.glow(x, y - 0.48 * size * flip, 0.06 * size, 0.06 * size, skin, opacity)
        canvas.polygon(at((-0.52, 0.17), (0.58, 0.19), (0.40, 0.0), (-0.40, 0.0)), wood, opacity)
        canvas.polygon(at((-0.54, 0.20), (0.60, 0.22), (0.57, 0.15), (-0.51, 0.13)), rim, opacity)
        if flip > 0 and light.hour == "night":
            lamp = (x + turn * 0.44 * size, y - 0.27 * size)
            canvas.glow(*lamp, 0.20 * size, 0.20 * size, _LAMP, 0.55)
            canvas.glow(*lamp, 0.06 * size, 0.06 * size, rgb(1.0, 0.93, 0.70), 1.0)


def boats(canvas: Canvas, rng: Generator, light: Light, river: float | None) -> None:
    """Paints boats on the water, the nearest the largest: sailing boats, or one that is rowed at x on a river."""
    if river is not None:
        boat(canvas, rng, light, river, light.base + 0.78 * (1.0 - light.base) + 0.01, 0.17, False)
        return
    near = np.sort(rng.uniform(0.12, 0.62, int(rng.integers(1, 4))))
    side = float(rng.choice((-1.0, 1.0)))
    for number, depth in enumerate(near):
        x = float(on_grid(0.5 + side * (-1.0) ** number * rng.uniform(0.08, 0.34)))
        y, size = on_grid(light.base + 0.05 + 0.40 * depth), on_grid(0.10 + 0.20 * depth)
        boat(canvas, rng, light, x, float(y), float(size), True)
