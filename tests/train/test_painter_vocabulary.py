"""The painter's words: what is left out, what cannot be together, and captions that say what is painted."""

import itertools

import numpy as np
import pytest

from lantern_jax.text.landscapes import ATTRIBUTES as RELEASED
from lantern_jax.text.landscapes import LANDSCAPES as RELEASED_WORDS
from lantern_jax.text.landscapes import Vocabulary
from tests.refused import refused_each
from train.painter.scenes import Scene, caption, sample_scene
from train.painter.vocabulary import ATTRIBUTES, IMPOSSIBLE, LANDSCAPES, USUAL, check, completed


def said_in(text: str) -> dict[str, str]:
    return LANDSCAPES.labels(LANDSCAPES.parse(text))


def test_the_released_attributes_come_first_and_keep_their_indices():
    assert list(ATTRIBUTES)[: len(RELEASED)] == list(RELEASED)
    for name, values in RELEASED.items():
        assert ATTRIBUTES[name][: len(values)] == values
    for word, meaning in RELEASED_WORDS.words.items():
        assert LANDSCAPES.words[word] == meaning or word in ("winter", "wintry")
    assert {name: USUAL[name] for name in RELEASED} == RELEASED_WORDS.usual
    assert Vocabulary.from_json(LANDSCAPES.to_json()) == LANDSCAPES


def test_captions_parse_back_to_what_they_came_from():
    for index in range(1500):
        scene = sample_scene(1, index, ATTRIBUTES)
        words = caption(scene.indices(ATTRIBUTES), ATTRIBUTES)
        assert Scene(**said_in(words), key=scene.key) == scene, words
    assert words == words.strip() and "  " not in words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("town", {"terrain": "town", "time": "noon", "weather": "clear", "season": "summer"}),
        ("northern lights", {"sight": "aurora", "time": "night", "weather": "clear"}),
        ("boats", {"craft": "boats", "water": "lake", "terrain": "hills"}),
        ("a snowy desert", {"weather": "snowy", "season": "winter", "terrain": "desert"}),
        ("a waterfall in pixel art", {"water": "waterfall", "style": "pixel art", "terrain": "hills"}),
        ("autumn", {"season": "autumn", "terrain": "hills", "style": "plain"}),
    ],
)
def test_what_a_prompt_leaves_out_is_calm_and_possible(text, expected):
    whole = completed(said_in(text))
    assert list(whole) == list(ATTRIBUTES) and expected.items() <= whole.items()


def test_any_two_possible_words_make_a_whole_scene():
    values = [(name, value) for name, values in ATTRIBUTES.items() for value in values]
    for first, second in itertools.combinations(values, 2):
        if first[0] != second[0] and not LANDSCAPES.clashes(first, second):
            check(completed(dict([first, second])))


def test_impossible_pairs_are_refused_and_never_drawn():
    for (one, values), (other, others) in IMPOSSIBLE:
        for value, another in itertools.product(values.split(), others.split()):
            assert value in ATTRIBUTES[one] and another in ATTRIBUTES[other]
            with pytest.raises(ValueError, match=r"^scene: [^\n]* are impossible together; leave one out$"):
                Scene(**{one: value, other: another})
    drawn = [sample_scene(2, index, ATTRIBUTES) for index in range(1500)]
    for scene in drawn:
        check({name: getattr(scene, name) for name in ATTRIBUTES})
    indices = np.array([scene.indices(ATTRIBUTES) for scene in drawn])
    for column, values in enumerate(ATTRIBUTES.values()):
        assert (np.bincount(indices[:, column], minlength=len(values)) >= 15).all()


def test_unknown_words_are_one_line():
    refused_each({
        "unknown attribute 'mood'; expected one of time": lambda: check({"mood": "calm"}),
        "sight is 'dragon'; expected one of nothing, birds": lambda: completed({"sight": "dragon"}),
        "time 'noon' and sight 'aurora' are impossible together": lambda: Scene("noon", sight="aurora"),
    })  # fmt: skip
