"""Scenes: the attributes of a landscape, drawn by chance or said, and their captions."""

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from lantern_jax.io.errors import LanternError
from lantern_jax.text.landscapes import ATTRIBUTES as RELEASED
from lantern_jax.text.landscapes import UNSPECIFIED
from train.painter.vocabulary import ATTRIBUTES, LANDSCAPES, completed

# How often a drawn scene has the usual value of an attribute; of others every value is as likely.
_CALM = {"sight": 0.45, "craft": 0.6, "style": 0.6}


@dataclass(frozen=True)
class Scene:
    """The attributes of a landscape, and the key (seed, index) of all other randomness of the picture.

    An attribute left out (None) takes its usual value, or the first that is possible beside the others.
    Raises LanternError for a value that there is not, or two that are impossible together.
    """

    time: str | None = None
    terrain: str | None = None
    weather: str | None = None
    water: str | None = None
    key: tuple[int, int] = (0, 0)
    season: str | None = None
    sight: str | None = None
    craft: str | None = None
    style: str | None = None

    def __post_init__(self):
        said = {name: getattr(self, name) for name in ATTRIBUTES if getattr(self, name) is not None}
        for name, value in completed(said).items():
            object.__setattr__(self, name, value)

    def indices(self, attributes: Mapping[str, Sequence[str]] = RELEASED) -> tuple[int, ...]:
        """Returns the index of each attribute's value: the released demo's attributes, or the painter's.

        Raises LanternError for a value that these attributes do not have.
        """
        for name, values in attributes.items():
            if getattr(self, name) not in values:
                raise LanternError(
                    f"scene: {name} {getattr(self, name)!r} has no index; expected one of {', '.join(values)}, "
                    "or the painter's attributes (train.painter.vocabulary)"
                )
        return tuple(values.index(getattr(self, name)) for name, values in attributes.items())

    def random(self, part: str) -> Generator:
        """Returns the random numbers of one part of the picture: what another part draws does not move it."""
        return np.random.default_rng((*self.key, zlib.crc32(part.encode())))


def sample_scene(seed: int, index: int, attributes: Mapping[str, Sequence[str]] = RELEASED) -> Scene:
    """Draws scene number `index` of the data set `seed` by chance, attributes independently of each other.

    Args:
      attributes: those that are drawn, with their values: the released demo's, or the painter's `ATTRIBUTES`. Others
        are left out. Where two values are impossible together, all are drawn anew.
    """
    rng = np.random.default_rng((seed, index, 0))
    while True:
        drawn = [(name, _draw(rng, name, values)) for name, values in attributes.items()]
        if not any(LANDSCAPES.clashes(*pair) for pair in itertools.combinations(drawn, 2)):
            return Scene(**dict(drawn), key=(seed, index))


def _draw(rng: Generator, name: str, values: Sequence[str]) -> str:
    if name in _CALM and rng.random() < _CALM[name]:
        return values[0]
    return values[rng.integers(name in _CALM, len(values))]


_SKY = {"clear": " under a clear sky", "cloudy": " under a cloudy sky"}
_BESIDE = {"lake": " by a lake", "sea": " by the sea"}
_WITH = {
    "river": "a river", "waterfall": "a waterfall", "boats": "boats",
    "birds": "birds", "rainbow": "a rainbow", "aurora": "an aurora", "balloons": "balloons",
}  # fmt: skip
_STYLE = {
    "watercolour": " in watercolour", "ink": " in ink", "poster": " as a poster", "pixel art": " as pixel art",
}  # fmt: skip


def caption(indices: Sequence[int], attributes: Mapping[str, Sequence[str]] = RELEASED) -> str:
    """Returns the caption of a scene's indices, such as "snowy mountains at dusk by a lake".

    It leaves out what is unspecified (-1), and the season, sight, craft and style that follow from the rest.
    """
    pairs = zip(attributes.items(), indices, strict=True)
    said = {name: values[index] for (name, values), index in pairs if index != UNSPECIFIED}
    for name in ("season", "sight", "craft", "style"):
        rest = {other: value for other, value in said.items() if other != name}
        if name in said and completed(rest)[name] == said[name]:
            del said[name]
    weather = said.get("weather", "")
    first = [weather if weather not in _SKY else "", said.get("season", ""), said.get("terrain", "landscape")]
    words = " ".join(word for word in first if word)
    time = f" at {said['time']}" if "time" in said else ""
    seen = [_WITH[said[name]] for name in ("water", "craft", "sight") if said.get(name) in _WITH]
    seen = [", ".join(seen[:-1]), seen[-1]] if len(seen) > 2 else seen
    extra = f" with {' and '.join(seen)}" if seen else ""
    beside, style = _BESIDE.get(said.get("water", ""), ""), _STYLE.get(said.get("style", ""), "")
    return f"{words}{time}{_SKY.get(weather, '')}{beside}{extra}{style}"
