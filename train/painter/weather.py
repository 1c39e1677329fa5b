"""What is in the air between the land and the viewer: fog, snow and rain."""

import numpy as np
from numpy.random import Generator

from train.painter.light import SNOW, Light
from train.painter.painting import Canvas, dotted, mix, smoothstep


def fog(canvas: Canvas, rng: Generator, light: Light) -> None:
    """Paints banks of fog, thickest at the horizon."""
    bank = canvas.texture("wave", rng)
    level = np.exp(-(((canvas.y - light.base + 0.02) / 0.15) ** 2))
    thick = 0.12 + 0.38 * level + 0.22 * bank * (0.25 + level)
    canvas.paint(light.colours.haze, np.clip(thick, 0.0, 0.9).astype(np.float32))


def falling(canvas: Canvas, rng: Generator, light: Light, kind: str) -> None:
    """Paints what falls from the sky in a kind of weather: snow or rain."""
    if kind == "snowy":
        for count, radius, opacity in ((36, 0.0095, 0.85), (14, 0.0130, 0.95)):
            sizes = radius * rng.uniform(0.75, 1.2, count)
            x, y = dotted(rng.random((2, count)))
            flakes = canvas.discs(x, y, sizes)
            canvas.paint(mix(light.colours.light, SNOW, 0.65), flakes * np.float32(opacity))
    elif kind == "stormy":
        rain = canvas.texture("rain", rng)
        # Slanted as the wind drives it.
        shear = (
            np.arange(canvas.side)[None, :] + (np.arange(canvas.side)[:, None] * 0.3).astype(int)
        ) % canvas.side
        streaks = np.take_along_axis(rain, shear, 1)
        canvas.paint(light.colours.haze * 1.1, np.float32(0.13) * smoothstep(0.6, 2.0, streaks))
        canvas.paint(light.colours.haze, 0.10)
