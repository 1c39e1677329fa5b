"""Skies: gradient, sun or moon with its glow, stars, heaped and high clouds, and what may be seen among them."""

import numpy as np
from numpy.random import Generator

from train.painter.light import Light
from train.painter.painting import CELL, Canvas, dotted, mix, on_grid, rgb, smoothstep


def paint_sky(canvas: Canvas, rng: Generator, light: Light, stars: bool) -> None:
    """Paints the colours of the whole sky, and stars if they are to be seen."""
    colours, base = light.colours, light.base
    height = np.clip(canvas.y[:, 0] / base, 0.0, 1.0)
    rows = mix(colours.zenith, colours.middle, smoothstep(0.0, 0.72, height))
    rows = mix(rows, colours.horizon, smoothstep(0.5, 1.02, height))
    canvas.image[:] = rows[:, None, :]
    if stars:
        _stars(canvas, rng, light)


def paint_clouds(canvas: Canvas, rng: Generator, light: Light, weather: str) -> None:
    """Paints the clouds of a kind of weather."""
    if weather == "clear":
        if rng.random() < 0.6:
            _wisps(canvas, rng, light, rng.uniform(0.2, 0.4))
        if light.hour == "noon" and rng.random() < 0.6:
            _heaps(canvas, rng, light, int(rng.integers(1, 3)), 0.6)
    elif weather == "cloudy":
        _wisps(canvas, rng, light, 0.5)
        _heaps(canvas, rng, light, int(rng.integers(6, 9)), 1.0)
    elif weather == "snowy":
        _overcast(canvas, rng, light, 0.20)
        _heaps(canvas, rng, light, 7, 1.0, 0.55)
    elif weather == "stormy":
        _thunderheads(canvas, rng, light)


def paint_sun(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints sun or moon with its glow, as far as the weather lets it through."""
    colours, (x, y), strength = light.colours, light.sun, light.weather.sun
    full = light.hour != "night" or rng.random() < 0.45
    tilt = rng.uniform(-0.4, 0.4)
    if strength == 0:
        return
    rows = canvas.rows(0, light.base + 0.1)
    away = np.hypot(canvas.x - x, (canvas.y[rows] - y) * 1.15)
    reach = {"dawn": 0.30, "noon": 0.20, "dusk": 0.34, "night": 0.17}[light.hour]
    canvas.paint(colours.glow, 0.75 * strength * np.exp(-((away / reach) ** 1.2)), rows)
    radius = {"dawn": 0.046, "noon": 0.042, "dusk": 0.060, "night": 0.052 if full else 0.062}[light.hour]
    soft = 1.0 if strength > 0.7 else 0.25
    if strength < 0.4:
        return
    disc = np.clip((radius - np.hypot(canvas.x - x, canvas.y[rows] - y)) * canvas.side * soft + 0.5, 0.0, 1.0)
    if not full:
        dx, dy = -0.030 * light.side * np.cos(tilt), -0.030 * np.sin(tilt) - 0.006
        bite = np.hypot(canvas.x - x - dx, canvas.y[rows] - y - dy) - radius * 0.92
        disc = disc * np.clip(bite * canvas.side + 0.5, 0.0, 1.0)
    canvas.paint(colours.sun, disc * np.float32(0.35 + 0.65 * strength), rows)
    if light.hour == "night" and full:
        for dx, dy, size in ((-0.016, -0.012, 0.011), (0.014, 0.004, 0.014), (-0.008, 0.020, 0.009)):
            canvas.glow(x + dx, y + dy, size, size, colours.sun * rgb(0.80, 0.82, 0.84), 0.8 * strength)


def _stars(canvas: Canvas, rng: Generator, light: Light) -> None:
    milky = canvas.texture("soft", rng)
    band = canvas.y - 0.30 - (canvas.x - 0.5) * rng.uniform(-0.5, 0.5)
    canvas.paint(rgb(0.42, 0.45, 0.70), 0.30 * smoothstep(-1.0, 1.8, milky) * np.exp(-((band / 0.16) ** 2)))
    count = 26
    x, y = dotted(rng.random(count)), dotted(rng.random(count) ** 1.2 * light.base)
    radius = 0.0075 + 0.0045 * rng.random(count) ** 3
    canvas.paint(rgb(0.98, 0.98, 1.0), canvas.discs(x, y, radius) * 0.95)
    for _ in range(4):
        x, y = dotted(rng.random()), dotted(rng.uniform(0.03, 0.6) * light.base)
        canvas.glow(x, y, 0.014, 0.014, rgb(0.75, 0.83, 1.0), 0.6)
        canvas.glow(x, y, 0.006, 0.006, rgb(1.0, 1.0, 1.0), 1.0)


def _wisps(canvas: Canvas, rng: Generator, light: Light, amount: float) -> None:
    """Paints high clouds, thin and drawn out, closer together towards the horizon."""
    rows = canvas.rows(0, light.base)
    thin = _overhead(canvas, canvas.texture("wave", rng), light.base)[rows]
    low = np.clip(canvas.y[rows] / light.base, 0.0, 1.0)
    colour = mix(light.colours.cloud_light, light.colours.cloud_shade, 0.35 * (1 - low) * np.ones_like(thin))
    canvas.paint(colour, np.float32(amount) * smoothstep(0.35, 1.9, thin), rows)


def _overhead(canvas: Canvas, field: np.ndarray, base: float) -> np.ndarray:
    """Squeezes a texture towards the horizon at `base`, like a layer of clouds overhead."""
    rows = (4.0 - 1.4 / (np.clip(base - canvas.y[:, 0], 0.0, 1.0) + 0.63)) * canvas.side
    whole = np.floor(rows).astype(int)
    part = (rows - whole).astype(np.float32)[:, None]
    return field[whole % canvas.side] * (1.0 - part) + field[(whole + 1) % canvas.side] * part


def _overcast(canvas: Canvas, rng: Generator, light: Light, contrast: float) -> None:
    """Paints a closed, softly mottled cloud cover."""
    rows = canvas.rows(0, light.base + 0.05)
    field = _overhead(canvas, canvas.texture("soft", rng), light.base)[rows]
    canvas.image[rows] *= (1.0 + np.float32(contrast * 0.5) * field)[..., None]


def _heaps(
    canvas: Canvas, rng: Generator, light: Light, count: int, size: float, opacity: float = 0.97
) -> None:
    """Paints heaped clouds: puffs on a flat base, lit from above and from the side of the sun."""
    far = np.sort(rng.random(count))[::-1]
    place = rng.permutation((np.arange(count) + rng.uniform(0.1, 0.9, count)) / count)
    foot = light.base * (0.92 - 0.66 * (1 - far) ** 0.9)
    wide = size * (0.07 + 0.17 * (1 - far)) * rng.uniform(0.8, 1.25, count)
    x, y, radius, tint = [], [], [], []
    for cloud in range(count):
        along = np.linspace(-1, 1, 9) + rng.uniform(-0.08, 0.08, 9)
        swell = (0.16 + 0.34 * (1 - np.abs(along) ** 1.6)) * rng.uniform(0.75, 1.15, 9)
        for lift in (0.35, 1.05):
            keep = slice(None) if lift < 1 else slice(2, 7)
            grown = swell[keep] * (1.0 if lift < 1 else 0.8)
            x.append(place[cloud] + wide[cloud] * along[keep] * (1.0 if lift < 1 else 0.8))
            y.append(foot[cloud] - wide[cloud] * grown * lift)
            radius.append(wide[cloud] * grown)
            tint.append(np.full(len(grown), cloud))
    relief, owner = canvas.puffs(*(np.concatenate(part) for part in (x, y, radius, tint)))
    rows = canvas.rows(0, light.base + 0.04)
    relief, owner = relief[rows], owner[rows]
    relief = relief + 0.003 * canvas.texture("soft", rng)[rows] + 0.0006 * canvas.texture("rough", rng)[rows]
    lit = 0.52 - 0.44 * _slope(canvas, relief, light.side * 0.6, -0.8)
    relief = relief + 0.001 * canvas.texture("rough", rng)[rows]
    # Clouds end softly at their flat base, and are darker towards it.
    above = (foot.astype(np.float32)[owner] - canvas.y[rows]) / (0.55 * wide.astype(np.float32)[owner])
    lit = lit * 0.75 + 0.42 * np.clip(above, 0.0, 1.0) - 0.10
    cover = smoothstep(0.0, 0.011, relief) * smoothstep(-0.16, 0.10, above)
    near = np.exp(-((np.hypot(canvas.x - light.sun[0], canvas.y[rows] - light.sun[1]) / 0.28) ** 2))
    lit = lit + 0.35 * near * light.weather.sun * (1.0 - smoothstep(0.0, 0.03, relief) * 0.6)
    colours = light.colours
    colour = mix(colours.cloud_shade, colours.cloud_light, np.clip(lit, 0.0, 1.0))
    fade = (opacity * (1.0 - 0.35 * far)).astype(np.float32)
    canvas.paint(colour, cover * fade[owner], rows)


def _slope(canvas: Canvas, relief: np.ndarray, x: float, y: float) -> np.ndarray:
    """Returns how steeply a relief [R, S] rises in a direction: a dot product with a normal, within [-1, 1]."""
    down, right = np.gradient(relief)
    return np.clip((right * np.float32(x) + down * np.float32(y)) * canvas.side, -1.0, 1.0)


def _thunderheads(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints a dark ceiling of clouds over a brighter gap above the horizon, with shafts of rain."""
    rows = canvas.rows(0, light.base + 0.05)
    y = canvas.y[rows]
    count = 46
    x = rng.random(count) * 1.2 - 0.1
    depth = rng.random(count) ** 0.6
    high = light.base * (0.02 + 0.56 * depth)
    radius = (0.05 + 0.08 * (1 - depth)) * rng.uniform(0.8, 1.2, count)
    relief = canvas.puffs(x, high, radius)[0][rows] + 0.004 * canvas.texture("soft", rng)[rows]
    relief = relief + 0.0008 * canvas.texture("rough", rng)[rows]
    lit = 0.45 - 0.45 * _slope(canvas, relief, light.side * 0.4, -0.9)
    dark, pale = light.colours.grey * 0.42, light.colours.grey * 1.05
    gap = smoothstep(0.50, 0.95, y / light.base)
    canvas.paint(light.colours.horizon, gap * 0.7 * np.ones_like(canvas.x), rows)
    edge = light.base * 0.60 - y + 0.03 * canvas.texture("soft", rng)[rows]
    ceiling = smoothstep(-0.05, 0.12, edge)
    canvas.paint(mix(pale, dark, 0.8), ceiling * 0.95, rows)
    canvas.paint(mix(dark, pale, np.clip(lit, 0.0, 1.0)), smoothstep(0.0, 0.014, relief) * 0.96, rows)
    for _ in range(3):
        centre, wide = rng.random(), rng.uniform(0.05, 0.12)
        lean = (canvas.x - centre + (y - 0.3) * 0.22) / wide
        canvas.paint(dark * 1.2, 0.55 * np.exp(-(lean**2)) * smoothstep(0.35, 0.6, y / light.base), rows)
    _lightning(canvas, rng, light)


def _lightning(canvas: Canvas, rng: Generator, light: Light) -> None:
    x, y = rng.uniform(0.15, 0.85), light.base * 0.12
    canvas.glow(x, light.base * 0.5, 0.16, 0.20, rgb(0.72, 0.74, 0.95), 0.55)
    points = [(x, y)]
    while y < light.base * 0.97:
        x, y = x + rng.uniform(-0.045, 0.045), y + rng.uniform(0.04, 0.08)
        points.append((x, min(y, light.base)))
    fork = len(points) // 2
    branch = [points[fork]]
    for _ in range(2):
        x, y = branch[-1]
        branch.append((x + light.side * rng.uniform(0.03, 0.06), y + rng.uniform(0.03, 0.05)))
    for path, width in ((branch, 0.008), (points, 0.013)):
        canvas.stroke(path, width * 2.6, rgb(0.75, 0.74, 1.0), 0.45)
        canvas.stroke(path, width, rgb(1.0, 0.99, 0.94))


def paint_sight(canvas: Canvas, rng: Generator, light: Light, sight: str) -> None:
    """Paints what is to be seen in the sky: "birds", "rainbow", "aurora" or "balloons"."""
    {"birds": _birds, "rainbow": _rainbow, "aurora": _aurora, "balloons": _balloons}[sight](
        canvas, rng, light
    )


def _rainbow(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints a rainbow opposite to the sun, behind the land."""
    colours = np.array(
        [(0.55, 0.25, 0.85), (0.20, 0.45, 0.95), (0.15, 0.80, 0.55), (0.98, 0.92, 0.25), (1.0, 0.55, 0.12),
         (0.95, 0.18, 0.20)], np.float32,
    )  # fmt: skip
    rows = canvas.rows(0, light.base + 0.04)
    x, radius = on_grid(0.5 - light.side * rng.uniform(0.05, 0.22)), on_grid(rng.uniform(0.40, 0.52))
    away = np.hypot(canvas.x - x, canvas.y[rows] - light.base - 0.03)
    across = (away - radius) / 0.085
    place = np.clip(across * len(colours) - 0.5, 0.0, len(colours) - 1.001)
    whole = place.astype(np.int64)
    colour = mix(colours[whole], colours[whole + 1], place - whole)
    mask = smoothstep(0.0, 0.10, across) * smoothstep(1.0, 0.90, across)
    canvas.paint(rgb(1.0, 1.0, 1.0), 0.10 * (across < 0.5), rows)
    canvas.paint(colour, mask * np.float32(0.62), rows)


def _aurora(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints curtains of light: bright lower edges and rays that fade upwards, green below and violet above."""
    rows = canvas.rows(0, light.base + 0.02)
    for _ in range(3):
        foot = light.base * rng.uniform(0.36, 0.68) + light.base * 0.10 * canvas.line(rng, 2.2, low=1, high=6)
        rays = np.exp(0.30 * canvas.line(rng, 1.2, low=5, high=14)) * (
            0.55 + 0.45 * np.tanh(canvas.line(rng, 1.5, low=1, high=6))
        )
        up = (foot[None, :] - canvas.y[rows]) / light.base
        veil = (
            smoothstep(-0.03, 0.03, up)
            * np.exp(-np.maximum(up, 0.0) * 3.2)
            * rays[None, :].astype(np.float32)
        )
        colour = mix(rgb(0.20, 0.98, 0.58), rgb(0.62, 0.30, 0.95), smoothstep(0.14, 0.55, up))
        canvas.paint(colour, np.clip(veil * 0.85, 0.0, 0.9), rows)


def _birds(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints a flock: wings in two strokes each."""
    x, y = rng.uniform(0.32, 0.68), light.base * rng.uniform(0.15, 0.42)
    dark = light.behind(rgb(0.10, 0.11, 0.15), 0.15)
    for number in range(int(rng.integers(3, 6))):
        # In two lines behind the first.
        back, arm = (number + 1) // 2, (-1.0) ** number
        bx, by = x + arm * back * rng.uniform(0.11, 0.14), y + back * rng.uniform(0.035, 0.065)
        bx, by, wing = on_grid(bx), on_grid(by), rng.choice((0.047, 0.059))
        lift, tilt = wing * rng.choice((0.4, 0.7)), wing * rng.choice((-0.2, 0.2))
        left = [(bx - wing, by - lift * 0.5 + tilt), (bx - wing * 0.5, by - lift + tilt / 2), (bx, by)]
        right = [(bx, by), (bx + wing * 0.5, by - lift - tilt / 2), (bx + wing, by - lift * 0.5 - tilt)]
        canvas.stroke(left + right[1:], 0.0170, dark)


def _balloons(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints hot-air balloons in stripes, the nearest the largest."""
    reds = (rgb(0.86, 0.20, 0.18), rgb(0.95, 0.66, 0.15), rgb(0.16, 0.45, 0.75), rgb(0.55, 0.25, 0.60))
    for number, size in enumerate(np.sort(rng.choice((0.062, 0.080, 0.100), int(rng.integers(1, 4))))):
        x = float(on_grid(0.5 + rng.uniform(0.10, 0.40) * (-1.0) ** number, CELL))
        y = float(on_grid(light.base * rng.uniform(0.20, 0.50), CELL))
        away = 0.5 - 4.5 * float(size)
        colour, other = reds[int(rng.integers(4))], rgb(0.97, 0.92, 0.80)
        rows, columns = canvas.rows(y - size * 1.1, y + size * 1.9), canvas.columns(x - size, x + size)
        dx, dy = (canvas.x[:, columns] - x) / np.float32(size), (canvas.y[rows] - y) / np.float32(size)
        # A ball that narrows downwards.
        half = np.sqrt(np.clip(1 - dy * dy, 0, 1)) * np.where(dy > 0, 1 - 0.28 * dy, 1.0)
        mouth = np.clip(1 - dy / 1.35, 0, 1) * 1.25
        half = np.where(dy > 0.45, np.minimum(0.86, mouth), half) * (dy < 1.12)
        mask = np.clip((half - abs(dx)) * float(size) * canvas.side + 0.5, 0.0, 1.0)
        stripes = smoothstep(-0.25, 0.25, np.sin(np.arcsin(np.clip(dx / (half + 1e-3), -1, 1)) * 3.0))
        lit = 0.62 + 0.34 * light.side * dx - 0.22 * dy
        canvas.paint(light.shone(mix(colour, other, stripes), lit, max(away, 0.0)), mask, rows, columns)
        dark, foot = light.behind(rgb(0.30, 0.20, 0.13), max(away, 0.0)), y + size * 1.42
        w = float(size) * 0.17
        for sign in (-1, 1):
            canvas.stroke([(x + sign * size * 0.22, y + size * 1.1), (x + sign * w, foot)], 0.008, dark)
        canvas.polygon([(x - w, foot), (x + w, foot), (x + w, foot + 1.6 * w), (x - w, foot + 1.6 * w)], dark)
