"""The light of each hour: palettes of dawn, noon, dusk and night, and what air and weather make of them."""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.random import Generator

from train.painter.painting import CELL, mix, on_grid, rgb

SNOW = rgb(0.95, 0.97, 1.0)


@dataclass(frozen=True)
class Palette:
    """Colours of an hour, float32 [3] each.

    Attributes:
      zenith, middle, horizon: of the sky, from the top down.
      sun: of sun or moon; glow: of the air around it.
      light, shade: of what they shine on and of shadows (both multiply an albedo).
      haze: what distance fades into.
      cloud_light, cloud_shade: of clouds; grey: of an overcast sky.
    """

    zenith: np.ndarray
    middle: np.ndarray
    horizon: np.ndarray
    sun: np.ndarray
    glow: np.ndarray
    light: np.ndarray
    shade: np.ndarray
    haze: np.ndarray
    cloud_light: np.ndarray
    cloud_shade: np.ndarray
    grey: np.ndarray


def _palette(*colours: str) -> Palette:
    return Palette(*(rgb(*(int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4))) for colour in colours))


# Two for every hour: a picture's own palette lies between them.
_PALETTES = {
    "dawn": (
        _palette("6f93d0", "f0bcc4", "ffe3ae", "fff8d8", "ffe2b0", "ffdcbe", "6b6590", "efcfcd", "ffe8d8", "b496b4",
                 "d9ccd4"),
        _palette("7fa8d8", "f6cdb4", "fff0c0", "fffbe6", "fff0c4", "ffe6c4", "6c7096", "f3dcc8", "fff2e0", "bba6b8",
                 "ddd3d3"),
    ),
    "noon": (
        _palette("1f66c8", "62a8ec", "cfe9f8", "fffff0", "f4fbff", "fffaea", "5d7296", "bcd8ee", "ffffff", "9aaec8",
                 "d3dde6"),
        _palette("2a7fd6", "7cc2f0", "ddf1f4", "fffff0", "fbfff6", "fffbe2", "647c98", "c6e0ea", "ffffff", "a6bacb",
                 "d8e1e6"),
    ),
    "dusk": (
        _palette("2f2560", "b8416a", "ff9a3c", "ffe9a0", "ffb050", "ff9e62", "46305a", "d97a5c", "ff9a5e", "69355f",
                 "8f6c8a"),
        _palette("3a3a86", "d0607c", "ffb648", "fff2b0", "ffc860", "ffac6e", "4c3862", "e08e68", "ffb27a", "764770",
                 "99768e"),
    ),
    "night": (
        _palette("070d2c", "142a5e", "35588f", "fbf8e2", "8fb0e8", "a2b8f4", "28396a", "2b4673", "7c93c4", "1c2c54",
                 "3b4a6c"),
        _palette("0a0f38", "1c2e6c", "46659c", "fdf9e6", "9cb4ee", "a8baf6", "2d3a70", "334a7c", "8598cc", "222c5c",
                 "424c74"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Weather:
    """What a kind of weather does to the light.

    Attributes:
      dull: how much greyer the sky is; flat: how much light and shade even out; dark: factor of all light.
      air: strength with which distance fades; sun: how visible sun or moon is.
    """

    dull: float
    flat: float
    dark: float
    air: float
    sun: float


_WEATHER = {
    "clear": Weather(0.0, 0.0, 1.0, 0.62, 1.0),
    "cloudy": Weather(0.12, 0.2, 0.96, 0.66, 0.9),
    "foggy": Weather(0.42, 0.32, 1.0, 0.80, 0.6),
    "snowy": Weather(0.72, 0.72, 1.0, 0.76, 0.25),
    "stormy": Weather(0.66, 0.62, 0.84, 0.74, 0.0),
}


@dataclass(frozen=True)
class Light:
    """All light of a picture.

    Attributes:
      colours: the hour's palette under this weather; weather: what that did.
      hour: "dawn", "noon", "dusk" or "night".
      side: -1 where the light comes from the left, 1 from the right.
      sun: (x, y) of sun or moon; base: y of the horizon.
      snow: whether snow lies on everything.
    """

    colours: Palette
    weather: Weather
    hour: str
    side: float
    sun: tuple[float, float]
    base: float
    snow: bool

    def shone(self, albedo: np.ndarray, lit, distance: float = 0.0) -> np.ndarray:
        """Returns albedo [3] or [R, C, 3] under light 0 to 1 (a number or [R, C]), behind air: 0 near, 1 far."""
        colours = self.colours
        if isinstance(lit, np.ndarray):
            lit = np.clip(lit, 0.0, 1.0)
        return self.behind(albedo * mix(colours.shade, colours.light, lit), distance)

    def behind(self, colour: np.ndarray, distance: float) -> np.ndarray:
        """Returns a colour behind a distance of air."""
        return mix(colour, self.colours.haze, min(distance * self.weather.air, 0.96))


def light_of(rng: Generator, hour: str, weather: str, base: float, snow: bool) -> Light:
    """Chooses the light of a picture: where the sun stands, and a palette between those of the hour."""
    first, second = _PALETTES[hour]
    share, kind = rng.random(), _WEATHER[weather]
    colours = Palette(*(mix(getattr(first, f.name), getattr(second, f.name), share) for f in fields(Palette)))
    grey = colours.grey
    if weather == "stormy":
        # Slate blue under the clouds of any hour.
        grey = mix(grey * 0.62, rgb(0.34, 0.40, 0.48) * (0.72 if hour == "night" else 1.0), 0.65)
    # Clouds even out the light without making it darker: `dark` does that.
    even = mix(colours.grey / colours.grey.mean(), np.ones(3, np.float32), kind.flat) * colours.light.mean()
    middle = mix(colours.light, even, kind.flat)
    colours = replace(
        colours,
        zenith=mix(colours.zenith, grey, kind.dull),
        middle=mix(colours.middle, grey, kind.dull),
        horizon=mix(colours.horizon, grey, kind.dull * 0.75),
        haze=mix(colours.haze, grey, kind.dull * 0.8)
        * np.float32(1.35 if hour == "night" and weather == "foggy" else 1.0),
        cloud_light=mix(colours.cloud_light, grey * np.float32(1.12), kind.dull),
        cloud_shade=mix(colours.cloud_shade, grey * np.float32(0.80), kind.dull),
        # The eye gets used to the dark where there is little else to see.
        light=middle * np.float32(kind.dark * (1.25 if hour == "night" and kind.dull > 0.3 else 1.0)),
        shade=colours.shade * np.float32(1.4 if weather == "stormy" and hour == "night" else 1.0),
        grey=grey,
    )
    side = float(rng.choice((-1.0, 1.0)))
    low, high = {"dawn": (0.60, 0.80), "noon": (0.10, 0.34), "dusk": (0.66, 0.88), "night": (0.18, 0.40)}[
        hour
    ]
    # Four tokens show the whole of it.
    sun = tuple(
        float(on_grid(place, CELL))
        for place in (0.5 + side * rng.uniform(0.10, 0.33), base * rng.uniform(low, high))
    )
    return Light(colours, kind, hour, side, sun, base, snow)
