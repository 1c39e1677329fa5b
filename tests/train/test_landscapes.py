"""Landscapes: seeded, addressable by index, the same at any size, and different for different attributes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from tests.refused import refused_each
from train.painter.landscapes import render, render_batch
from train.painter.scenes import Scene, caption, sample_scene

# Where a value of an attribute shows: a band of rows, as shares of the height, and what else is painted with it.
SKY, LAND, WATER, ALL = (0.0, 0.5), (0.3, 0.65), (0.6, 1.0), (0.0, 1.0)
SHOWS = {
    "time": (ALL, {}),
    "terrain": (LAND, {}),
    "weather": (SKY, {"season": "winter"}),
    "water": (WATER, {"terrain": "mountains"}),
    "season": (LAND, {"terrain": "forest"}),
    "sight": (SKY, {}),
    "craft": (WATER, {"water": "lake"}),
    "style": (ALL, {}),
}


def shown(picture: np.ndarray, rows: tuple[float, float]) -> np.ndarray:
    """Returns a band of a picture."""
    return picture[int(rows[0] * len(picture)) : int(rows[1] * len(picture))].astype(np.float32)


def test_batch_is_addressable_by_index():
    images, attributes = render_batch(3, [5, 0, 7], 128)
    assert images.shape == (3, 128, 128, 3) and images.dtype == np.uint8
    assert attributes.shape == (3, len(ATTRIBUTES)) and attributes.dtype == np.int32
    again, same = render_batch(3, range(7, 8), 128)
    np.testing.assert_array_equal(again[0], images[2])
    np.testing.assert_array_equal(same[0], attributes[2])
    assert (render_batch(4, [5], 128)[0][0] != images[0]).any()
    assert tuple(attributes[1]) == sample_scene(3, 0).indices()
    assert render(sample_scene(3, 0)).shape == (256, 256, 3)


def test_every_value_is_drawn_and_unusual_ones_less_often():
    drawn = np.array([sample_scene(0, index).indices() for index in range(2000)])
    for column, (name, values) in enumerate(ATTRIBUTES.items()):
        share = np.bincount(drawn[:, column], minlength=len(values)) / len(drawn)
        usual = ATTRIBUTES[name].index(LANDSCAPES.usual[name])
        assert share.min() > 0.005 and (
            share[usual] == share.max() or name not in ("sight", "craft", "style")
        )


@pytest.mark.parametrize("index", range(3))
def test_a_picture_is_the_same_at_any_size(index):
    scene = sample_scene(6, index)
    small = render(scene, 128).astype(np.float32)
    other = render(replace(scene, key=(6, 100 + index)), 128).astype(np.float32)
    # Details finer than a pixel of the small picture are lost in it; few tones turn that into whole steps.
    bound = 3.5 if scene.style == "plain" else 7.0
    for size in (256, 512):
        block = size // 128
        large = render(scene, size).astype(np.float32).reshape(128, block, 128, block, 3).mean((1, 3))
        assert np.abs(large - small).mean() < min(bound, 0.4 * np.abs(other - small).mean()), caption_of(
            scene
        )


def caption_of(scene: Scene) -> str:
    return caption(scene.indices())


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_every_value_changes_the_picture_where_it_shows(attribute):
    rows, beside = SHOWS[attribute]
    pictures = {}
    for value in ATTRIBUTES[attribute]:
        said = {attribute: value} | {name: other for name, other in beside.items() if name != attribute}
        # An aurora is compared with other nights.
        said |= {"time": "night"} if attribute == "sight" and value in ("aurora", "nothing") else {}
        pictures[value] = shown(render(Scene(**said, key=(2, 3)), 128), rows)
    if attribute == "sight":
        day = {"nothing by day": shown(render(Scene(**beside, key=(2, 3)), 128), rows)}
        pictures |= day
    for (one, first), (two, second) in itertools.combinations(pictures.items(), 2):
        changed = np.abs(first - second).max(-1)
        assert (changed > 12).mean() > 0.008 and changed.mean() > 1.0, (one, two)


def test_attributes_left_out_are_calm_and_do_not_move_the_rest():
    scene = Scene(terrain="hills", key=(1, 1))
    assert (scene.time, scene.weather, scene.season, scene.style) == ("noon", "clear", "summer", "plain")
    with_birds = render(Scene(terrain="hills", sight="birds", key=(1, 1)), 128).astype(int)
    without = render(scene, 128).astype(int)
    assert (with_birds[70:] == without[70:]).all() and (with_birds != without).any()


@pytest.mark.parametrize("size", [0, -64, 100, 2048])
def test_unknown_sizes_are_refused(size):
    refused_each({
        f"size {size}: expected a power of two up to 1024": lambda: render(sample_scene(0, 0), size),
    })  # fmt: skip
