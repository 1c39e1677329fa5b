"""Metrics by the demo's own classifier: features for distances between sets, agreement with captions.

Axes: n pictures, H W height and width, F features.
"""

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt8

from lantern_jax.io.errors import LanternError
from lantern_jax.metrics.demo_classifier import (
    FEATURES,
    SIDE,
    VALUES,
    VERSION,
    DemoClassifier,
    by_attribute,
    shipped_classifier,
)
from lantern_jax.metrics.features import FeatureReader, network
from lantern_jax.metrics.scores import Score, check_pairs
from lantern_jax.text.landscapes import ATTRIBUTES, UNSPECIFIED, parse_prompt

NAME = f"demo classifier {VERSION}"


@cache
def demo_features() -> FeatureReader:
    """Returns the reader of the classifier's layer before its scores: 48 numbers a picture of 128 x 128 pixels."""
    return FeatureReader(f"{NAME}, penultimate", FEATURES, _prepare, network(_features, shipped_classifier()))


@cache
def _probabilities() -> FeatureReader:
    return FeatureReader(f"{NAME}, probabilities", VALUES, _prepare, network(_shares, shipped_classifier()))


def caption_agreement(
    pictures: Sequence[UInt8[np.ndarray, "H W 3"]], prompts: Sequence[str]
) -> Float[np.ndarray, " n"]:
    """Returns the classifier's probability of a prompt's attributes: the mean over those that it names.

    It is a probability, so that a picture that half shows something counts half. A picture that has nothing to do with
    its prompt gets 1/4 on average.

    Args:
        pictures: of the demo's size, 128 x 128.
        prompts: one a picture, in the demo's words.

    Returns:
        float64 [n], from 0 to 1.

    Raises:
        LanternError: prompts and pictures differ in number, a prompt in other words, a picture of another size.
    """
    check_pairs(pictures, prompts)
    asked = np.array([parse_prompt(prompt) for prompt in prompts], np.int64).reshape(-1, len(ATTRIBUTES))
    given = by_attribute(_probabilities().features(pictures))
    named = asked != UNSPECIFIED
    columns = [
        np.take_along_axis(part, np.maximum(asked[:, [i]], 0), axis=1)[:, 0] for i, part in enumerate(given)
    ]
    return np.sum(np.stack(columns, axis=1) * named, axis=1) / named.sum(axis=1)


def agreement_scores() -> Score:
    """Returns ``caption_agreement`` as a score."""
    return Score(f"caption agreement, {NAME}", caption_agreement)


def _prepare(picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "H W 3"]:
    picture = np.asarray(picture)
    if picture.shape != (SIDE, SIDE, 3) or picture.dtype != np.uint8:
        shape = " x ".join(map(str, picture.shape))
        raise LanternError(
            f"a picture of {shape} ({picture.dtype}): the demo's classifier reads {SIDE} x {SIDE} x 3 (uint8)"
        )
    return picture.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _features(params: PyTree, pictures: Float[Array, "n H W 3"]) -> Float[Array, "n F"]:
    return DemoClassifier().apply({"params": params}, pictures)[0]


def _shares(params: PyTree, pictures: Float[Array, "n H W 3"]) -> Float[Array, "n V"]:
    """Returns the probabilities of all values, attribute by attribute."""
    scores = DemoClassifier().apply({"params": params}, pictures)[1]
    return jnp.concatenate([jax.nn.softmax(part) for part in by_attribute(scores)], axis=-1)
