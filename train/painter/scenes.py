"""Scenes: the attributes of a landscape, drawn at random or given, and their captions."""

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.text.vocabulary import UNSPECIFIED, Vocabulary

# How often a drawn scene has the usual value of an attribute; for other attributes, all values are equally likely.
_CALM = {"sight": 0.45, "craft": 0.6, "style": 0.6}


@dataclass(frozen=True)
class Scene:
    """The attributes of a landscape, and the key (seed, index) of all other randomness of the picture.

    An attribute left out (None) takes its usual value, or the first that is possible with the others.
    Raises LanternError for a value that does not exist, or two that are impossible together.
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

    def indices(self) -> tuple[int, ...]:
        """Returns the index of each attribute's value."""
        return tuple(values.index(getattr(self, name)) for name, values in ATTRIBUTES.items())

    def random(self, part: str) -> Generator:
        """Returns the random numbers of one part of the picture, which do not depend on what another part draws."""
        return np.random.default_rng((*self.key, zlib.crc32(part.encode())))


def check(said: Mapping[str, str]) -> None:
    """Raises LanternError for an unknown attribute or value, or two values that are impossible together."""
    for name, value in said.items():
        values = ATTRIBUTES.get(name)
        if values is None:
            raise LanternError(f"scene: unknown attribute {name!r}; expected one of {', '.join(ATTRIBUTES)}")
        if value not in values:
            raise LanternError(f"scene: {name} is {value!r}; expected one of {', '.join(values)}")
    LANDSCAPES.check_possible(said, "scene")


def check_vocabulary(vocabulary: Vocabulary | None) -> None:
    """Raises LanternError unless a checkpoint's vocabulary has the landscapes' attributes, and so their labels."""
    if vocabulary is None or list(vocabulary.attributes.items()) != list(ATTRIBUTES.items()):
        found = "none" if vocabulary is None else f"one of {errors.listed(vocabulary.attributes)}"
        raise LanternError(
            f"the checkpoint's vocabulary is {found}: expected that of landscapes, {errors.listed(ATTRIBUTES)}; "
            "give the demo or one trained like it"
        )


def completed(said: Mapping[str, str]) -> dict[str, str]:
    """Returns a value for every attribute: the given one, else the usual one, else the first that is possible.

    Raises LanternError for what is unknown or impossible.
    """
    check(said)
    given = [values.index(said[name]) if name in said else UNSPECIFIED for name, values in ATTRIBUTES.items()]
    return LANDSCAPES.labels(LANDSCAPES.completed(given))


def sample_scene(seed: int, index: int) -> Scene:
    """Draws scene number `index` of the data set `seed` at random, attributes independently of each other.

    Where two values are impossible together, all are drawn anew.
    """
    rng = np.random.default_rng((seed, index, 0))
    while True:
        drawn = [(name, _draw(rng, name, values)) for name, values in ATTRIBUTES.items()]
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


def caption(indices: Sequence[int]) -> str:
    """Returns the caption of a scene's indices, such as "snowy mountains at dusk by a lake".

    It leaves out what is unspecified (-1), and the season, sight, craft and style that follow from the rest.
    """
    said = LANDSCAPES.labels(indices)
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
