"""Metrics by the demo's own classifier, which tells a landscape's time of day, terrain, weather and water.

A small network reads pictures of the demo's size, painted or reconstructed by its tokenizer, and ships with the package
(``train.classifier`` trains it). Its features keep the rows apart, since sky and ground mean different things, and pool
over the columns, since landscapes may be mirrored.

Axes: n pictures, H W height and width, F features, V values of all attributes.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jaxtyping import Array, Float, PyTree, UInt8

from lantern_jax.io.archives import read_arrays
from lantern_jax.io.errors import LanternError
from lantern_jax.metrics.features import FeatureReader, Score, check_pairs, network
from lantern_jax.tensors.matching import module_table, read_tensors
from lantern_jax.text.landscapes import ATTRIBUTES, LANDSCAPES, UNSPECIFIED

# Raised with every change of the file or of the preprocessing: features of two versions are not compared.
VERSION = 1
NAME = f"demo classifier {VERSION}"
FEATURES = 48
# Pixels of a picture's side.
SIDE = 128
VALUES = sum(len(values) for values in ATTRIBUTES.values())


class DemoClassifier(nn.Module):
    """Features of landscapes, and scores of the values of all attributes, attribute by attribute.

    Attributes:
        widths: channels of the convolutions.
        strides: of the convolutions.
        fold: side of the squares of pixels that become channels before.
    """

    widths: tuple[int, ...] = (32, 64, 64, 96, 96)
    strides: tuple[int, ...] = (1, 2, 1, 2, 1)
    fold: int = 4

    @nn.compact
    def __call__(self, pictures: Float[Array, "n H W 3"]) -> tuple[Float[Array, "n F"], Float[Array, "n V"]]:
        """Reads ``pictures`` in [-1, 1]; H and W divisible by 16."""
        x = rearrange(pictures, "n (h p) (w q) c -> n h w (p q c)", p=self.fold, q=self.fold)
        for i, (width, stride) in enumerate(zip(self.widths, self.strides, strict=True)):
            x = nn.Conv(width, (3, 3), strides=(stride, stride), name=f"conv_{i}")(x)
            x = nn.relu(nn.GroupNorm(8, use_fast_variance=False, name=f"norm_{i}")(x))
        rows = rearrange(jnp.mean(x, axis=2), "n h c -> n (h c)")
        features = nn.silu(nn.Dense(FEATURES, name="features")(rows))
        return features, nn.Dense(VALUES, name="values")(features)


def by_attribute(scores: Float[Array, "n V"]) -> list[Float[Array, "n v"]]:
    """Splits scores into those of each attribute's values, in the order of ``ATTRIBUTES``."""
    ends = np.cumsum([len(values) for values in ATTRIBUTES.values()])
    return [scores[:, end - len(values) : end] for end, values in zip(ends, ATTRIBUTES.values(), strict=True)]


@cache
def shipped_classifier() -> PyTree:
    """Reads the parameters that ship with the package, float32; raises LanternError for a damaged file."""
    return read_classifier(Path(str(resources.files("lantern_jax") / "assets" / "demo_classifier.npz")))


def read_classifier(path: Path) -> PyTree:
    """Reads parameters, float32, from a file of arrays by their paths; raises LanternError for any other."""
    example = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(DemoClassifier().init, jax.random.key(0), example)["params"]
    table = module_table(shapes, lambda path: path.replace(".", "/"))
    try:
        return read_tensors(read_arrays(path), table, what="demo's classifier")
    except ValueError as error:
        raise LanternError(
            f"{path} cannot be read, or is not the demo's classifier ({error}): install the package again"
        ) from None


@cache
def demo_features() -> FeatureReader:
    """Returns the reader of the classifier's layer before its scores: 48 numbers per picture of 128 x 128 pixels."""
    return _reader("penultimate", FEATURES, lambda features, scores: features)


@cache
def _probabilities() -> FeatureReader:
    """Returns the reader of the probabilities of all values, attribute by attribute."""

    def shares(features: Float[Array, "n F"], scores: Float[Array, "n V"]) -> Float[Array, "n V"]:
        return jnp.concatenate([jax.nn.softmax(part) for part in by_attribute(scores)], axis=-1)

    return _reader("probabilities", VALUES, shares)


def _reader(what: str, width: int, chosen: Callable[..., Array]) -> FeatureReader:
    def apply(params: PyTree, pictures: Float[Array, "n H W 3"]) -> Float[Array, "n _"]:
        return chosen(*DemoClassifier().apply({"params": params}, pictures))

    return FeatureReader(f"{NAME}, {what}", width, _prepare, network(apply, shipped_classifier()))


def caption_agreement(
    pictures: Sequence[UInt8[np.ndarray, "H W 3"]], prompts: Sequence[str]
) -> Float[np.ndarray, " n"]:
    """Returns the classifier's probability of a prompt's attributes: the mean over those that it names.

    It is a probability, so that a picture that half shows something counts half. A picture that has nothing to do with
    its prompt gets 1/4 on average.

    Args:
        pictures: of the demo's size, 128 x 128.
        prompts: one per picture, in the demo's words.

    Returns:
        float64 [n], from 0 to 1.

    Raises:
        LanternError: prompts and pictures differ in number, a prompt in other words, a picture of another size.
    """
    check_pairs(pictures, prompts)
    asked = np.array([LANDSCAPES.parse(prompt, strict=False) for prompt in prompts], np.int64).reshape(
        -1, len(ATTRIBUTES)
    )
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
