"""Scenes: what is left out, what cannot be together, and captions that say what is painted."""

import dataclasses
import itertools

import numpy as np
import pytest

from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from tests.refused import refused_each
from train.painter.scenes import Scene, caption, check, check_vocabulary, completed, sample_scene


def said_in(text: str) -> dict[str, str]:
    return LANDSCAPES.labels(LANDSCAPES.parse(text))


def test_a_vocabulary_of_landscapes_has_their_attributes():
    check_vocabulary(LANDSCAPES)
    check_vocabulary(dataclasses.replace(LANDSCAPES, words={}, usual={}))
    more = dataclasses.replace(LANDSCAPES, attributes={**ATTRIBUTES, "mood": ("calm", "wild")})
    turned = dataclasses.replace(LANDSCAPES, attributes=dict(reversed(ATTRIBUTES.items())))
    refused_each({
        "the checkpoint's vocabulary is none: expected that of landscapes": lambda: check_vocabulary(None),
        "the checkpoint's vocabulary is one of time, .* and 4 more: expected": lambda: check_vocabulary(more),
        "the checkpoint's vocabulary is one of style": lambda: check_vocabulary(turned),
    })  # fmt: skip


def test_captions_parse_back_to_what_they_came_from():
    for index in range(150):
        scene = sample_scene(1, index)
        words = caption(scene.indices())
        assert Scene(**said_in(words), key=scene.key) == scene, words
    assert words == words.strip() and "  " not in words


def test_any_two_possible_words_make_a_whole_scene():
    values = [(name, value) for name, values in ATTRIBUTES.items() for value in values]
    for first, second in itertools.combinations(values, 2):
        if first[0] != second[0] and not LANDSCAPES.clashes(first, second):
            check(completed(dict([first, second])))


def test_impossible_pairs_are_refused_and_never_drawn():
    for (one, values), (other, others) in LANDSCAPES.impossible:
        for value, another in itertools.product(values, others):
            with pytest.raises(ValueError, match=r"^scene: [^\n]* are impossible together; leave one out$"):
                Scene(**{one: value, other: another})
    drawn = [sample_scene(2, index) for index in range(1500)]
    for scene in drawn:
        check({name: getattr(scene, name) for name in ATTRIBUTES})
    indices = np.array([scene.indices() for scene in drawn])
    for column, values in enumerate(ATTRIBUTES.values()):
        assert (np.bincount(indices[:, column], minlength=len(values)) >= 15).all()


def test_unknown_words_are_refused_in_one_line():
    refused_each({
        "unknown attribute 'mood'; expected one of time": lambda: check({"mood": "calm"}),
        "sight is 'dragon'; expected one of nothing, birds": lambda: completed({"sight": "dragon"}),
        "time 'noon' and sight 'aurora' are impossible together": lambda: Scene("noon", sight="aurora"),
    })  # fmt: skip
