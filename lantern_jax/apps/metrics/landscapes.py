"""The words of the demo's landscapes: attributes, synonyms, ignored words, usual values and impossible pairs."""

from collections.abc import Mapping

from lantern_jax.text.vocabulary import Vocabulary

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

# Synonyms and plurals of every value; the value itself is a word as well.
_SYNONYMS = {
    "time": {
        "dawn": "sunrise daybreak morning",
        "noon": "midday day daytime daylight afternoon",
        "dusk": "sunset twilight evening",
        "night": "nighttime midnight moonlit moonlight moon starry stars nights",
    },
    "terrain": {
        "mountains": "mountain range ranges peak peaks alps alpine mountainous summit summits",
        "hills": "hill hilly meadow meadows",
        "desert": "deserts dune dunes sand sandy",
        "forest": "forests wood woods woodland woodlands tree trees pine pines fir firs wooded",
        "cliffs": "cliff cliffy canyon canyons bluff bluffs",
        "town": "towns village villages city houses church steeple",
    },
    "weather": {
        "clear": "cloudless sunny",
        "cloudy": "cloud clouds overcast",
        "foggy": "fog misty mist hazy haze",
        "snowy": "snow snowfall snowing",
        "stormy": "storm storms thunderstorm thunder lightning rain rainy",
    },
    "water": {
        "none": "dry waterless",
        "lake": "lakes pond ponds lakeside",
        "river": "rivers stream streams",
        "sea": "seas ocean oceans seaside coast coastal",
        "waterfall": "waterfalls cascade cascades falls",
    },
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
    "blue sky": ("weather", "clear"),
    "blue skies": ("weather", "clear"),
    "northern lights": ("sight", "aurora"),
    "polar lights": ("sight", "aurora"),
    "hot air balloon": ("sight", "balloons"),
    "hot air balloons": ("sight", "balloons"),
    "ink wash": ("style", "ink"),
}

# Grammar, and words that fit several values ("green" hills or forest, "calm" water or air).
_IGNORED = (
    "a an the of at in on by with and or under over above below near beside behind before during around "
    "between among through along to from its their this that there is are it beneath beyond next "
    "into onto one some green blue rolling capped covered sky skies water waters calm quiet still "
    "peaceful beautiful landscape landscapes scene scenery view picture painting image photo "
    "as style drawn painted hot air"
)

# A calm, bright day: left to the model, every other picture would be dark.
_USUAL = {
    "time": "noon", "terrain": "hills", "weather": "clear", "water": "none",
    "season": "summer", "sight": "nothing", "craft": "ashore", "style": "plain",
}  # fmt: skip

# Pairs of values that no landscape has: (attribute, values) against (attribute, values).
_IMPOSSIBLE = (
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
    words={
        word: (attribute, value)
        for attribute, values in _SYNONYMS.items()
        for value, synonyms in values.items()
        for word in [value, *synonyms.split()]
    }
    | _PHRASES,
    ignored=frozenset(_IGNORED.split()),
    usual=_USUAL,
    impossible=tuple(
        ((one, tuple(values.split())), (other, tuple(others.split())))
        for (one, values), (other, others) in _IMPOSSIBLE
    ),
)
