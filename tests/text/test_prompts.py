"""Prompts: synonyms, ignored words, label ids, and one clear line for what cannot be understood."""

import numpy as np
import pytest

from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from lantern_jax.text.vocabulary import Vocabulary
from tests.refused import refused


def _first(*values):
    return dict(zip(ATTRIBUTES, values, strict=False))


@pytest.mark.parametrize(("prompt", "expected"), [
    ("snowy mountains at dusk by a calm lake", _first("dusk", "mountains", "snowy", "lake")),
    ("A misty, green HILL by the ocean: sunrise!", _first("dawn", "hills", "foggy", "sea")),
    ("a blue lake under blue skies", {"weather": "clear", "water": "lake"}),
    ("mountain range under clouds", {"terrain": "mountains", "weather": "cloudy"}),
    ("snow-capped peaks", {"terrain": "mountains", "weather": "snowy"}), ("night", {"time": "night"}),
    ("dry desert, deserts and dunes", {"terrain": "desert", "water": "none"}),
    ("green woods with a stream at sunset", {"terrain": "forest", "water": "river", "time": "dusk"}),
    ("a village in an autumn storm, as pixel art",
     {"terrain": "town", "season": "autumn", "weather": "stormy", "style": "pixel art"}),
    ("sailing under the northern lights", {"craft": "boats", "sight": "aurora"}),
])  # fmt: skip
def test_prompts_name_attributes(prompt, expected):
    assert LANDSCAPES.labels(LANDSCAPES.parse(prompt)) == expected


@pytest.mark.parametrize(("prompt", "message"), [
    ("a castle with dragons at dusk", "unknown word 'castle', 'dragons'; known words: time: dawn, noon, "),
    ("a forrest on mountins", r"'forrest' \(did you mean forest\?\), 'mountins' \(did you mean mountains\?\); known w"),
    ("bad weather", r"'bad', 'weather' \(say which: clear, cloudy, foggy, snowy, stormy\); known words: "),
    ("\U0001f332", "unknown word '\U0001f332'; known words: "),
    ("x" * 100_000, "unknown word"), ("zz " * 50_000, "unknown word"), ("", "empty prompt"), (" ?! ", "empty prompt"),
    ("with a calm", "empty prompt"), ("dawn at night", "'dawn' and 'night' contradict each other \\(time\\)"),
    ("forest in the dunes", "'forest' and 'dunes' contradict"),
])  # fmt: skip
def test_a_bad_prompt_is_a_one_line_error(prompt, message):
    with refused(message) as error:
        LANDSCAPES.parse(prompt)
    known = str(error.value).partition("known words: ")[2]
    groups = [group.split(": ") for group in known.split("; ")] if known else []
    assert not groups or [name for name, _ in groups] == list(ATTRIBUTES), "grouped by attribute"
    assert all(words.startswith(", ".join(ATTRIBUTES[name])) for name, words in groups), (
        "a word for each value"
    )
    assert len(str(error.value)) < 800


def test_unknown_words_are_ignored_unless_they_are_all_there_is():
    asked = "a forrest (with a castle) at dusk, castle \U0001f332!"
    assert LANDSCAPES.unknown(asked) == ["forrest", "castle", "\U0001f332"]
    assert LANDSCAPES.labels(LANDSCAPES.parse(asked, strict=False)) == {"time": "dusk"}
    for prompt, message in (("a castle", "unknown word 'castle'"), ("dawn at night or so", "contradict")):
        with refused(message):
            LANDSCAPES.parse(prompt, strict=False)


@pytest.mark.parametrize(("prompt", "denied"), [
    ("a forest without fog", "'without' before 'fog'"), ("no thick clouds over a lake", "'no' before 'clouds'"),
    ("a forest, not at night", "'not' before 'night'"), ("It isn\u2019t snowy", "\"isn't\" before 'snowy'"),
    ("never any hot air balloons", "'never' before 'hot air balloons'"),
    ("no people, cars or fog", "'no' before 'fog'"),
])  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
def test_what_would_be_drawn_all_the_same_cannot_be_denied(prompt, denied, strict):
    known = denied.partition(" before ")[2]
    with refused(
        f"^prompt: {denied} is not understood: leave both out, and give {known} as negative_prompt "
    ):
        LANDSCAPES.parse(prompt, strict)


def test_what_is_denied_may_be_unknown():
    asked = "no people in the forest; not a soul. Fog"
    assert LANDSCAPES.labels(LANDSCAPES.parse(asked, strict=False)) == {
        "terrain": "forest",
        "weather": "foggy",
    }
    assert LANDSCAPES.unknown(asked) == ["no", "people", "not", "soul"]


def test_attributes_left_open_are_calm_and_bright():
    def shown(prompt):
        return tuple(LANDSCAPES.labels(LANDSCAPES.completed(LANDSCAPES.parse(prompt))).values())

    calm = "nothing", "ashore", "plain"
    assert shown("a forest") == ("noon", "forest", "clear", "none", "summer", *calm)
    assert shown("foggy night by the sea") == ("night", "hills", "foggy", "sea", "summer", *calm), (
        "what is named stays"
    )
    assert shown("snow") == ("noon", "hills", "snowy", "none", "winter", *calm), "no summer has snow"
    several = Vocabulary({"time": ("day", "night"), "sky": ("red",)}, {}, usual={"time": "night"})
    assert several.completed((-1, -1)) == (1, -1) and several.completed((0, 0)) == (0, 0)


def test_attributes_left_open_are_possible_beside_those_named():
    values = {"time": ("day", "night"), "sky": ("blue", "aurora"), "ground": ("grass", "snow", "sand")}
    clashing = (
        (("sky", ("aurora",)), ("time", ("day",))),
        (("time", ("night",)), ("ground", ("grass", "snow"))),
    )
    usual = {"time": "day", "sky": "blue", "ground": "grass"}
    vocabulary = Vocabulary(values, {}, usual=usual, impossible=clashing)
    assert vocabulary.completed((-1, -1, -1)) == (0, 0, 0)
    assert vocabulary.completed((-1, 1, -1)) == (1, 1, 2), "an aurora is at night, and nights are on sand"
    assert vocabulary.completed((-1, -1, 1)) == (0, 0, 1)
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary
    assert Vocabulary.from_json(LANDSCAPES.to_json()) == LANDSCAPES
    with refused("prompt: time 'day' and sky 'aurora' are impossible together; leave one out"):
        vocabulary.completed((0, 1, -1))


def test_label_ids_are_disjoint_and_cover_the_table():
    assert LANDSCAPES.num_labels == sum(len(values) + 1 for values in ATTRIBUTES.values())
    counts = [len(values) for values in ATTRIBUTES.values()]
    rows = np.array([[min(row, count - 1) for count in counts] for row in range(-1, max(counts))])
    ids = LANDSCAPES.label_ids(rows)
    assert ids.dtype == np.int32
    assert sorted(set(ids.ravel().tolist())) == list(range(LANDSCAPES.num_labels))
    np.testing.assert_array_equal(ids[0], LANDSCAPES.null_labels())
    small = Vocabulary({"time": ("day", "night"), "sky": ("red", "blue", "grey")}, {})
    np.testing.assert_array_equal(small.label_ids([(-1, 2), (1, -1), (0, 0)]), [[2, 5], [1, 6], [0, 3]])
    for parsed in ((0, 0, 0), (2, 0), (0, -2), (0, 3)):
        with refused("attributes: got shape"):
            small.label_ids(parsed)


@pytest.mark.parametrize(("entry", "value", "match"), [
    *( (entry, value, "malformed") for entry in ("attributes", "words", "ignored") for value in (3, [["a"]]) ),
    ("words", {"dawn": 3}, "malformed"),
    *(("usual", value, "malformed") for value in (3, ["a"])),
    *(("impossible", value, "malformed") for value in (3, [3], [["a"]], [[["a"], ["b"]]], [[["a", 3], ["b", []]]])),
    ("impossible", [[["time", ["noon"]], ["water", ["wine"]]]], "impossible names the unknown value 'wine' of 'water'"),
    ("usual", {"time": "noonish"}, "usual names the unknown value 'noonish' of 'time'"),
    ("words", {"city": ["terrain", "urban"]}, "'city' names the unknown value 'urban'"),
    ("words", ..., "malformed"),
])  # fmt: skip
def test_malformed_json_is_an_error(entry, value, match):
    data = LANDSCAPES.to_json() | {entry: value}
    with refused(f"vocabulary: .*{match}|{match}"):
        Vocabulary.from_json({name: part for name, part in data.items() if part is not ...})


def test_longest_phrase_wins():
    vocabulary = Vocabulary(
        {"thing": ("a red car", "car")}, {"red car": ("thing", "a red car"), "car": ("thing", "car")}
    )
    assert vocabulary.parse("Red car") == (0,)
    assert vocabulary.parse("car") == (1,)
