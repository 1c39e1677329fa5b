"""A small network that tells a landscape's time of day, terrain, weather and water.

It reads pictures of the demo's size, painted or reconstructed by its tokenizer, and ships with the package
(``train.classifier`` trains it). Its features keep the rows apart, since sky and ground mean different things, and pool
over the columns, since landscapes may be mirrored.

Axes: n pictures, H W height and width, F features, V values of all attributes.
"""

from functools import cache
from importlib import resources
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float, PyTree

from lantern_jax.io.archives import read_arrays
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.matching import module_table, read_tensors
from lantern_jax.text.landscapes import ATTRIBUTES

# Raised with every change of the file or of the preprocessing: features of two versions are not compared.
VERSION = 1
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


def stored(params: PyTree) -> dict[str, np.ndarray]:
    """Returns parameters by their path, float16, as the file holds them."""
    return {name: np.asarray(leaf, np.float16) for name, leaf in flatten_dict(params, sep="/").items()}


@cache
def shipped_classifier() -> PyTree:
    """Reads the parameters that ship with the package, float32; raises LanternError for a damaged file."""
    return read_classifier(Path(str(resources.files("lantern_jax") / "assets" / "demo_classifier.npz")))


def read_classifier(path: Path) -> PyTree:
    """Reads parameters, float32, from a file with the arrays of ``stored``; raises LanternError for any other."""
    example = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(DemoClassifier().init, jax.random.key(0), example)["params"]
    table = module_table(shapes, lambda path: path.replace(".", "/"))
    try:
        return read_tensors(read_arrays(path), table, what="demo's classifier")
    except ValueError as error:
        raise LanternError(
            f"{path} cannot be read, or is not the demo's classifier ({error}): install the package again"
        ) from None
