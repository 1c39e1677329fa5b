"""The words of the painter's landscapes: attributes, what cannot be together, and what is left out.

The released demo knows the first four attributes and their first four values (`lantern_jax.text.landscapes`); the
next one takes `LANDSCAPES` of this module in its place.
"""

from collections.abc import Mapping

from lantern_jax.io.errors import LanternError
from lantern_jax.text.landscapes import LANDSCAPES as RELEASED
from lantern_jax.text.landscapes import UNSPECIFIED, Vocabulary

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "time": ("dawn", "noon", "dusk", "night"),
    "terrain": ("mountains", "hills", "desert", "forest", "cliffs", "town"),
    "weather": ("clear", "cloudy", "foggy", "snowy", "stormy"),
    "water": ("none", "lake", "river", "sea", "waterfall"),
    "season": ("summer", "spring", "autumn", "winter"),
    "sight": ("nothing", "birds", "rainbow", "aurora", "balloons"),
    "craft": ("ashore", "boats"),
    "style": ("plain", "watercolour", "ink", "poster", "pixel art"),
}

# Words of the values that the released demo does not know, and those that mean something else beside them.
_SYNONYMS = {
    "terrain": {
        "cliffs": "cliff cliffy canyon canyons bluff bluffs",
        "town": "towns village villages city houses church steeple",
    },
    "weather": {"stormy": "storm storms thunderstorm thunder lightning rain rainy"},
    "water": {"waterfall": "waterfalls cascade cascades falls"},
    "season": {
        "summer": "summery",
        "spring": "springtime blossom blossoms blossoming blooming flowers",
        "autumn": "autumnal fall",
        "winter": "wintry wintertime",
    },
    "sight": {
        "nothing": "",
        "birds": "bird seagull seagulls gulls flock",
        "rainbow": "rainbows",
        "aurora": "auroras",
        "balloons": "balloon",
    },
    "craft": {"ashore": "", "boats": "boat sailboat sailboats sailing ship ships"},
    "style": {
        "plain": "",
        "watercolour": "watercolours watercolor watercolors aquarelle",
        "ink": "inked",
        "poster": "posters",
        "pixel art": "pixels pixelated",
    },
}
_PHRASES = {
    "northern lights": ("sight", "aurora"),
    "polar lights": ("sight", "aurora"),
    "hot air balloon": ("sight", "balloons"),
    "hot air balloons": ("sight", "balloons"),
    "ink wash": ("style", "ink"),
}

# Calm values of what a prompt leaves out, where they are possible.
USUAL = {
    "time": "noon", "terrain": "hills", "weather": "clear", "water": "none",
    "season": "summer", "sight": "nothing", "craft": "ashore", "style": "plain",
}  # fmt: skip

# Pairs of values that no landscape has: (attribute, values) against (attribute, values).
IMPOSSIBLE = (
    (("sight", "aurora"), ("time", "dawn noon dusk")),
    (("sight", "aurora"), ("weather", "cloudy foggy snowy stormy")),
    (("sight", "rainbow"), ("time", "night")),
    (("sight", "rainbow"), ("weather", "foggy snowy")),
    (("sight", "birds"), ("time", "night")),
    (("sight", "birds"), ("weather", "foggy snowy stormy")),
    (("sight", "balloons"), ("time", "night")),
    (("sight", "balloons"), ("weather", "foggy snowy stormy")),
    (("weather", "snowy"), ("season", "summer spring autumn")),
    (("terrain", "desert"), ("season", "spring autumn")),
    (("terrain", "desert town"), ("water", "waterfall")),
    (("craft", "boats"), ("water", "none waterfall")),
    (("style", "ink"), ("time", "dawn dusk")),
    (("style", "ink"), ("season", "spring autumn")),
    (("style", "ink"), ("weather", "snowy stormy")),
    (("style", "ink"), ("sight", "rainbow aurora")),
)

LANDSCAPES = Vocabulary(
    attributes=dict(ATTRIBUTES),
    words=dict(RELEASED.words)
    | {
        word: (attribute, value)
        for attribute, values in _SYNONYMS.items()
        for value, synonyms in values.items()
        for word in [value, *synonyms.split()]
    }
    | _PHRASES,
    ignored=RELEASED.ignored | {"as", "style", "drawn", "painted", "hot", "air"},
    usual=USUAL,
    impossible=tuple(
        ((one, tuple(values.split())), (other, tuple(others.split())))
        for (one, values), (other, others) in IMPOSSIBLE
    ),
)


def check(said: Mapping[str, str]) -> None:
    """Raises LanternError for an unknown attribute or value, or two values that are impossible together."""
    for name, value in said.items():
        values = ATTRIBUTES.get(name)
        if values is None:
            raise LanternError(f"scene: unknown attribute {name!r}; expected one of {', '.join(ATTRIBUTES)}")
        if value not in values:
            raise LanternError(f"scene: {name} is {value!r}; expected one of {', '.join(values)}")
    LANDSCAPES.check_possible(said, "scene")


def completed(said: Mapping[str, str]) -> dict[str, str]:
    """Returns a value for every attribute: what is said, else the usual one, else the first that is possible.

    Raises LanternError for what is unknown or impossible.
    """
    check(said)
    given = [values.index(said[name]) if name in said else UNSPECIFIED for name, values in ATTRIBUTES.items()]
    return LANDSCAPES.labels(LANDSCAPES.completed(given))
