"""Landscapes: seeded, addressable by index, and visibly different for different attributes."""

import itertools

import numpy as np
import pytest

from lantern_jax.text.landscapes import ATTRIBUTES, parse_prompt
from tests.refused import refused_each
from train.painter.landscapes import Scene, caption, render, render_batch, sample_scene


def test_batch_is_addressable_by_index():
    images, attributes = render_batch(3, [5, 0, 7])
    assert images.shape == (3, 128, 128, 3) and images.dtype == np.uint8
    assert attributes.shape == (3, 4) and attributes.dtype == np.int32
    again, same = render_batch(3, range(7, 8))
    np.testing.assert_array_equal(again[0], images[2])
    np.testing.assert_array_equal(same[0], attributes[2])
    assert (render_batch(4, [5])[0][0] != images[0]).any()
    assert tuple(attributes[1]) == sample_scene(3, 0).attributes


def test_attributes_are_uniform_and_independent_of_rendering():
    drawn = np.array([sample_scene(0, index).attributes for index in range(2000)])
    for column, values in enumerate(ATTRIBUTES.values()):
        share = np.bincount(drawn[:, column], minlength=len(values)) / len(drawn)
        np.testing.assert_allclose(share, 1 / len(values), atol=0.04)


@pytest.mark.parametrize("size", [32, 64])
def test_small_picture_is_the_average_of_the_large_one(size):
    scene = sample_scene(1, 2)
    block = 128 // size
    large = render(scene).astype(np.float32).reshape(size, block, size, block, 3).mean((1, 3))
    assert np.abs(render(scene, size) - large).max() <= 1.0


def test_every_combination_paints_without_warnings():
    for row, values in enumerate(itertools.product(*ATTRIBUTES.values())):
        if row % 5 == 0:
            image = render(Scene(*values, key=(1, row)), 64)
            assert 3 < image.mean() < 252 and image.std() > 4, values


def test_caption_names_all_attributes():
    for attributes in itertools.product(*(range(len(values)) for values in ATTRIBUTES.values())):
        pairs = zip(ATTRIBUTES, attributes, strict=True)
        expected = tuple(-1 if name == "water" and index == 0 else index for name, index in pairs)
        assert parse_prompt(caption(attributes)) == expected
    assert caption((2, 0, 3, 1)) == "snowy mountains at dusk by a lake"


@pytest.mark.parametrize("size", [0, -64, 100, 256])
def test_sizes_and_values_that_there_are_not(size):
    refused_each({
        f"size {size}: expected a divisor of 128": lambda: render(sample_scene(0, 0), size),
        "terrain is 'city'; expected one of mountains": lambda: Scene("noon", "city", "clear", "none"),
    })  # fmt: skip
