"""The demo's classifier: it names what is painted, its agreement follows the prompts, its features see blur."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from lantern_jax.apps.metrics.agreement import (
    agreement_scores,
    caption_agreement,
    demo_features,
    read_classifier,
)
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from tests.refused import refused_each
from train.painter.landscapes import render_batch
from train.painter.scenes import caption

COUNT = 24


@pytest.fixture(scope="module")
def landscapes():
    """Pictures of a seed that training did not use, and their captions."""
    pictures, attributes = render_batch(77, range(COUNT))
    return pictures, [caption(row) for row in attributes]


@pytest.mark.slow
def test_what_is_painted_agrees_with_its_caption_and_not_with_others(landscapes):
    pictures, prompts = landscapes
    own, others = (caption_agreement(pictures, words) for words in (prompts, prompts[1:] + prompts[:1]))
    assert own.shape == (COUNT,) and own.dtype == np.float64
    assert own.mean() > 0.9 and own.min() > 0 and own.max() <= 1
    # Captions share some words by chance.
    assert others.mean() < 0.45
    np.testing.assert_array_equal(agreement_scores().of(pictures, prompts), own)


def test_only_what_a_prompt_names_counts(landscapes):
    prompts = ["dawn", "noon", "dusk", "night", "forest", "noon forest"]
    *times, forest, both = caption_agreement(landscapes[0][:1].repeat(len(prompts), 0), prompts)
    assert sum(times) == pytest.approx(1, abs=1e-5)
    assert both == pytest.approx((times[1] + forest) / 2, abs=1e-6)


def test_the_distance_of_features_grows_with_blur(landscapes):
    pictures, reader = landscapes[0], demo_features()
    features = reader.features(pictures)
    assert features.shape == (COUNT, reader.width) and "2" in reader.name
    distances = [0.0]
    for radius in (1, 4):
        blur = ImageFilter.GaussianBlur(radius)
        blurred = [np.asarray(Image.fromarray(picture).filter(blur)) for picture in pictures]
        distances.append(
            frechet_distance(Normal.of_features(features), Normal.of_features(reader.features(blurred)))
        )
    assert distances == sorted(distances) and distances[-1] > 100 * distances[1] > 0


def test_what_it_cannot_read_is_refused_in_one_line(landscapes, tmp_path):
    pictures, prompts = landscapes
    refused_each({
        "2 pictures for 1 prompts": lambda: caption_agreement(pictures[:2], prompts[:1]),
        "unknown word 'cat'": lambda: caption_agreement(pictures[:1], ["a cat"]),
        r"128 x 256 x 3 \(uint8\).*reads 256 x 256 x 3": lambda: caption_agreement(pictures[:1, :128], prompts[:1]),
        "float64": lambda: caption_agreement(pictures[:1] / 255.0, prompts[:1]),
        "cannot be read": lambda: read_classifier(tmp_path / "nothing.npz"),
    })  # fmt: skip
