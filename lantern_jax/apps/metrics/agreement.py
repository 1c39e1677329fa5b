"""Metrics by the demo's own classifier, which recognises eight attributes of a landscape, such as terrain and season.

A small network that ships with the package (``train.classifier`` trains it) reads pictures of the demo's size, painted
or reconstructed by its tokenizer. Its features keep the rows apart, since sky and ground mean different things, and
pool over the columns, by means and smooth maxima, since landscapes may be mirrored.

A classifier's file holds its parameters by their paths, and which attributes it tells in pictures of which size:
``reads``, a text in JSON {"attributes": {name: values}, "side": pixels}.

Axes: n pictures, H W height and width, F features, V values of all attributes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float, PyTree, UInt8

from lantern_jax.apps.metrics.features import FeatureReader, Score, check_pairs, network, usual_batch
from lantern_jax.apps.metrics.landscapes import ATTRIBUTES, LANDSCAPES
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_arrays
from lantern_jax.tensors.matching import module_table, read_tensors
from lantern_jax.text.vocabulary import UNSPECIFIED

# Raised with every change of the file or of the preprocessing: features of two versions are not compared.
VERSION = 2
NAME = f"demo classifier {VERSION}"
FEATURES = 48
# A picture's side in pixels is a multiple of this.
CELL = 16
# Channels and strides of the convolutions, and the side of the squares of pixels that are folded into channels first.
_WIDTHS, _STRIDES, _FOLD = (32, 64, 64, 96, 96), (1, 2, 1, 2, 1), 4


def value_counts(attributes: Mapping[str, Sequence[str]]) -> tuple[int, ...]:
    """Returns how many values each attribute has."""
    return tuple(len(values) for values in attributes.values())


class DemoClassifier(nn.Module):
    """Features of landscapes, and scores of the values of all attributes, attribute by attribute.

    ``counts`` says how many values each attribute has.
    """

    counts: tuple[int, ...] = value_counts(ATTRIBUTES)

    @nn.compact
    def __call__(self, pictures: Float[Array, "n H W 3"]) -> tuple[Float[Array, "n F"], Float[Array, "n V"]]:
        """Reads ``pictures`` in [-1, 1]; H and W divisible by 16."""
        x = rearrange(pictures, "n (h p) (w q) c -> n h w (p q c)", p=_FOLD, q=_FOLD)
        for i, (width, stride) in enumerate(zip(_WIDTHS, _STRIDES, strict=True)):
            x = nn.Conv(width, (3, 3), strides=(stride, stride), name=f"conv_{i}")(x)
            x = nn.relu(nn.GroupNorm(8, use_fast_variance=False, name=f"norm_{i}")(x))
        # A smooth maximum beside the mean: a bird is in one column of many.
        pooled = jnp.stack([jnp.mean(x, axis=2), jax.nn.logsumexp(4 * x, axis=2) / 4], axis=-1)
        rows = rearrange(pooled, "n h c two -> n (h c two)")
        features = nn.silu(nn.Dense(FEATURES, name="features")(rows))
        return features, nn.Dense(sum(self.counts), name="values")(features)


def by_attribute(scores: Float[Array, "n V"], counts: Sequence[int]) -> list[Float[Array, "n v"]]:
    """Splits scores by attribute; ``counts`` says how many values each one has."""
    ends = np.cumsum(counts)
    return [scores[:, end - count : end] for end, count in zip(ends, counts, strict=True)]


@dataclass(frozen=True)
class Classifier:
    """A trained ``DemoClassifier``.

    Attributes:
        params: float32.
        attributes: those that it recognises, attribute -> values.
        side: side in pixels of the pictures that it reads.
    """

    params: PyTree
    attributes: Mapping[str, tuple[str, ...]]
    side: int

    @property
    def model(self) -> DemoClassifier:
        return DemoClassifier(value_counts(self.attributes))


@cache
def shipped_classifier() -> Classifier:
    """Reads the classifier that ships with the package; raises LanternError for a damaged file."""
    return read_classifier(Path(str(resources.files("lantern_jax") / "assets" / "demo_classifier.npz")))


def read_classifier(path: Path) -> Classifier:
    """Reads a classifier's file, parameters and ``reads``; raises LanternError for any other file."""
    try:
        arrays = read_arrays(path)
        reads = json.loads(str(arrays.pop("reads")))
        attributes, side = {name: tuple(words) for name, words in reads["attributes"].items()}, reads["side"]
        example = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
        model = DemoClassifier(value_counts(attributes))
        shapes = jax.eval_shape(model.init, jax.random.key(0), example)["params"]
        table = module_table(shapes, lambda path: path.replace(".", "/"))
        return Classifier(read_tensors(arrays, table, what="demo's classifier"), attributes, side)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LanternError(
            f"{path} cannot be read, or is not the demo's classifier ({error}): install the package again"
        ) from None


def classifier_arrays(classifier: Classifier) -> dict[str, np.ndarray]:
    """Returns the arrays of a classifier's file: parameters in float16 by their paths, and ``reads``."""
    reads = {"attributes": {name: list(values) for name, values in classifier.attributes.items()}}
    leaves = flatten_dict(classifier.params, sep="/").items()
    return {name: np.asarray(leaf, np.float16) for name, leaf in leaves} | {
        "reads": np.array(json.dumps(reads | {"side": classifier.side}))
    }


@cache
def _reader(part: int, what: str, width: int) -> FeatureReader:
    """Returns the reader of one part of what the shipped classifier returns for pictures of its size."""
    classifier = shipped_classifier()

    def apply(params: PyTree, pictures: Float[Array, "n H W 3"]) -> Float[Array, "n _"]:
        return classifier.model.apply({"params": params}, pictures)[part]

    read = network(apply, classifier.params)
    return FeatureReader(f"{NAME}, {what}", width, partial(_prepare, classifier.side), read, usual_batch())


def demo_features() -> FeatureReader:
    """Returns the reader of the classifier's layer before its scores: 48 numbers per picture of 256 x 256 pixels."""
    return _reader(0, "penultimate", FEATURES)


def caption_agreement(
    pictures: Sequence[UInt8[np.ndarray, "H W 3"]], prompts: Sequence[str]
) -> Float[np.ndarray, " n"]:
    """Returns the classifier's probability of a prompt's attributes: the mean over those that the prompt names.

    As it is a probability, a picture that half shows something counts half. A picture that has nothing to do with its
    prompt scores at chance level, from a sixth to a half depending on the attribute.

    Args:
        pictures: of the demo's size, 256 x 256.
        prompts: one per picture, in the demo's words.

    Returns:
        float64 [n], from 0 to 1.

    Raises:
        LanternError: prompts and pictures differ in number, a prompt uses other words, or a picture has another size.
    """
    check_pairs(pictures, prompts)
    counts = value_counts(ATTRIBUTES)
    parsed = [LANDSCAPES.parse(prompt, strict=False) for prompt in prompts]
    asked = np.array(parsed, np.int64).reshape(-1, len(counts))
    scores = by_attribute(_reader(1, "values", sum(counts)).features(pictures), counts)
    total = np.zeros(len(asked))
    for part, values in zip(scores, asked.T, strict=True):
        chances = np.exp(part - np.logaddexp.reduce(part, axis=1, keepdims=True))
        total += np.where(values == UNSPECIFIED, 0, chances[np.arange(len(values)), values])
    return total / (asked != UNSPECIFIED).sum(axis=1)


def agreement_scores() -> Score:
    """Returns ``caption_agreement`` as a score."""
    return Score(f"caption agreement, {NAME}", caption_agreement)


def _prepare(side: int, picture: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "H W 3"]:
    picture = np.asarray(picture)
    if picture.shape != (side, side, 3) or picture.dtype != np.uint8:
        shape = " x ".join(map(str, picture.shape))
        raise LanternError(
            f"a picture of {shape} ({picture.dtype}): the demo's classifier reads {side} x {side} x 3 (uint8)"
        )
    return picture.astype(np.float32) / np.float32(127.5) - np.float32(1)
