"""Prompts: synonyms, ignored words, label ids, and one clear line for what cannot be understood."""

import json

import numpy as np
import pytest

from lantern_jax.text.landscapes import ATTRIBUTES, LANDSCAPES, Vocabulary, parse_prompt
from tests.refused import refused


def _all(*values):
    return dict(zip(ATTRIBUTES, values, strict=True))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("snowy mountains at dusk by a calm lake", _all("dusk", "mountains", "snowy", "lake")),
        ("A misty, green HILL by the ocean: sunrise!", _all("dawn", "hills", "foggy", "sea")),
        ("a blue lake under blue skies", {"weather": "clear", "water": "lake"}),
        ("mountain range under clouds", {"terrain": "mountains", "weather": "cloudy"}),
        ("snow-capped peaks", {"terrain": "mountains", "weather": "snowy"}),
        ("night", {"time": "night"}),
        ("dry desert, deserts and dunes", {"terrain": "desert", "water": "none"}),
        ("green woods with a stream at sunset", {"terrain": "forest", "water": "river", "time": "dusk"}),
    ],
)
def test_prompts_name_attributes(prompt, expected):
    assert LANDSCAPES.labels(parse_prompt(prompt)) == expected


def test_words_of_the_specification_are_known():
    words = (
        "snowy mountain mountains hill hills range desert sea forest lake dawn noon dusk night clear cloudy "
    )
    words += "clouds foggy"
    for word in words.split():
        assert sum(index >= 0 for index in parse_prompt(word)) == 1
    for word in ("calm", "green", "a", "with", "and"):
        assert word in LANDSCAPES.ignored
    assert not LANDSCAPES.ignored & set(LANDSCAPES.words)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("a castle with dragons at dusk", "unknown word 'castle', 'dragons'; known words: dawn, "),
        ("", "empty prompt"),
        (" ?! ", "empty prompt"),
        ("with a calm", "empty prompt"),
        ("dawn at night", "'dawn' and 'night' contradict each other \\(time\\)"),
        ("forest in the dunes", "'forest' and 'dunes' contradict"),
    ],
)
def test_bad_prompts_are_one_line(prompt, message):
    with refused(message):
        parse_prompt(prompt)


def test_error_lists_every_known_word():
    with pytest.raises(ValueError, match="castle") as error:
        parse_prompt("castle")
    assert set(str(error.value).split("known words: ")[1].split(", ")) == set(LANDSCAPES.words)


@pytest.mark.parametrize("prompt", ["x" * 100_000, "zz " * 50_000])
def test_errors_quote_little(prompt):
    with pytest.raises(ValueError, match="unknown word") as error:
        parse_prompt(prompt)
    assert len(str(error.value)) < 2000


def test_label_ids_are_disjoint_and_cover_the_table():
    assert LANDSCAPES.num_labels == sum(len(values) + 1 for values in ATTRIBUTES.values())
    rows = np.array([[row] * 4 for row in range(-1, 4)])
    ids = LANDSCAPES.label_ids(rows)
    assert ids.dtype == np.int32
    assert sorted(ids.ravel()) == list(range(LANDSCAPES.num_labels))
    np.testing.assert_array_equal(ids[0], LANDSCAPES.null_labels())
    np.testing.assert_array_equal(LANDSCAPES.label_ids((-1, 2, -1, 0)), [4, 7, 14, 15])


@pytest.mark.parametrize("parsed", [(0, 0, 0), (4, 0, 0, 0), (0, -2, 0, 0)])
def test_label_ids_reject_what_has_no_label(parsed):
    with pytest.raises(ValueError, match="attributes: got shape"):
        LANDSCAPES.label_ids(parsed)


def test_json_round_trip():
    again = Vocabulary.from_json(json.loads(json.dumps(LANDSCAPES.to_json())))
    assert again == LANDSCAPES and list(again.attributes) == list(ATTRIBUTES)


def test_damaged_json_is_an_error():
    data = LANDSCAPES.to_json()
    with pytest.raises(ValueError, match="missing words"):
        Vocabulary.from_json({name: value for name, value in data.items() if name != "words"})
    with pytest.raises(ValueError, match="'city' names the unknown value 'urban'"):
        Vocabulary.from_json({**data, "words": {"city": ["terrain", "urban"]}})


@pytest.mark.parametrize("entry", ["attributes", "words", "ignored"])
@pytest.mark.parametrize("value", [None, 3, {"dawn": 3}])
def test_malformed_json_is_an_error(entry, value):
    if entry == "ignored" and isinstance(value, dict):
        value = [["a"]]
    with refused("vocabulary: malformed"):
        Vocabulary.from_json({**LANDSCAPES.to_json(), entry: value})


def test_longest_phrase_wins():
    vocabulary = Vocabulary(
        {"thing": ("a red car", "car")}, {"red car": ("thing", "a red car"), "car": ("thing", "car")}
    )
    assert vocabulary.parse("Red car") == (0,)
    assert vocabulary.parse("car") == (1,)
