"""The Inception v3 network of the Fréchet Inception distance, in the 2015 weights' own form.

It is the network of arXiv 1512.00567 as in TensorFlow's graph of 2015-12-05: the pool branches' averages leave out the
padding, the last block pools by maximum instead, and the layer of the 1008 classes is not read here. Its usual file is
pytorch-fid's ``pt_inception-2015-12-05-6726825d.pth``, with names like torchvision's.

Axes: n pictures, h w height and width, c d channels.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.apps.metrics.features import FeatureReader, network, usual_batch
from lantern_jax.apps.metrics.preprocessing import INCEPTION, INCEPTION_SIDE
from lantern_jax.io import errors
from lantern_jax.tensors.matching import Entry, module_table, published_name, read_tensors

WHAT = "FID Inception v3 (pt_inception-2015-12-05-6726825d.pth)"
NAME, WIDTH = "inception pool_3", 2048
_EPSILON = 1e-3
# The layer of the classes, which is not read; if its shape differs, the network is another, such as torchvision's own.
_CLASSES = {"fc.weight": (1008, WIDTH), "fc.bias": (1008,)}


class ConvNorm(nn.Module):
    """Convolution without bias, normalization by stored statistics, ReLU; odd kernels are padded unless ``valid``."""

    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    valid: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n i j d"]:
        padding = [(0, 0) if self.valid else (side // 2, side // 2) for side in self.kernel]
        strides = (self.stride, self.stride)
        x = nn.Conv(self.features, self.kernel, strides, padding, use_bias=False, name="conv")(x)
        x = nn.BatchNorm(use_running_average=True, epsilon=_EPSILON, name="bn")(x)
        return nn.relu(x)


def branch(name: str, x: Float[Array, "n h w c"], *layers: tuple) -> Float[Array, "n i j d"]:
    """Applies a ``ConvNorm`` for each tuple of arguments in turn, their names numbered from 1."""
    for number, layer in enumerate(layers, 1):
        x = ConvNorm(*layer, name=f"{name}_{number}")(x)
    return x


def average_pool(x: Float[Array, "n h w c"]) -> Float[Array, "n h w c"]:
    """Returns 3 x 3 means that leave out what is beyond the edge."""
    return nn.avg_pool(x, (3, 3), padding="SAME", count_include_pad=False)


def halve(x: Float[Array, "n h w c"]) -> Float[Array, "n i j c"]:
    """Returns 3 x 3 maxima at every other place, without padding."""
    return nn.max_pool(x, (3, 3), strides=(2, 2))


def join(*parts: Float[Array, "n h w _"]) -> Float[Array, "n h w c"]:
    return jnp.concatenate(parts, axis=-1)


class Block35(nn.Module):
    """Mixed_5b to 5d, on 35 x 35 places."""

    pooled: int

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h w d"]:
        one = ConvNorm(64, name="branch1x1")(x)
        five = branch("branch5x5", x, (48,), (64, (5, 5)))
        double = branch("branch3x3dbl", x, (64,), (96, (3, 3)), (96, (3, 3)))
        pool = ConvNorm(self.pooled, name="branch_pool")(average_pool(x))
        return join(one, five, double, pool)


class From35To17(nn.Module):
    """Mixed_6a."""

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n i j d"]:
        three = ConvNorm(384, (3, 3), 2, valid=True, name="branch3x3")(x)
        double = branch("branch3x3dbl", x, (64,), (96, (3, 3)), (96, (3, 3), 2, True))
        return join(three, double, halve(x))


class Block17(nn.Module):
    """Mixed_6b to 6e, on 17 x 17 places; ``width`` is that of the layers in between."""

    width: int

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h w d"]:
        width, along, down = self.width, (1, 7), (7, 1)
        one = ConvNorm(192, name="branch1x1")(x)
        seven = branch("branch7x7", x, (width,), (width, along), (192, down))
        layers = ((width,), (width, down), (width, along), (width, down), (192, along))
        double = branch("branch7x7dbl", x, *layers)
        pool = ConvNorm(192, name="branch_pool")(average_pool(x))
        return join(one, seven, double, pool)


class From17To8(nn.Module):
    """Mixed_7a."""

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n i j d"]:
        last = ((3, 3), 2, True)
        three = branch("branch3x3", x, (192,), (320, *last))
        seven = branch("branch7x7x3", x, (192,), (192, (1, 7)), (192, (7, 1)), (192, *last))
        return join(three, seven, halve(x))


class Block8(nn.Module):
    """Mixed_7b and 7c, on 8 x 8 places; the last one pools by maximum, as in the graph of 2015."""

    last: bool

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h w d"]:
        parts = [ConvNorm(320, name="branch1x1")(x)]
        for name, layers in (("branch3x3", [(384,)]), ("branch3x3dbl", [(448,), (384, (3, 3))])):
            stem = branch(name, x, *layers)
            for letter, kernel in (("a", (1, 3)), ("b", (3, 1))):
                parts.append(ConvNorm(384, kernel, name=f"{name}_{len(layers) + 1}{letter}")(stem))
        pool = nn.max_pool(x, (3, 3), padding="SAME") if self.last else average_pool(x)
        return join(*parts, ConvNorm(192, name="branch_pool")(pool))


class Inception(nn.Module):
    """The network from pictures of 299 x 299, about -1 to 1, to the 2048 means before the classes (``pool_3``)."""

    @nn.compact
    def __call__(self, x: Float[Array, "n h w 3"]) -> Float[Array, "n 2048"]:
        x = ConvNorm(32, (3, 3), 2, valid=True, name="Conv2d_1a_3x3")(x)
        x = ConvNorm(32, (3, 3), valid=True, name="Conv2d_2a_3x3")(x)
        x = halve(ConvNorm(64, (3, 3), name="Conv2d_2b_3x3")(x))
        x = ConvNorm(80, valid=True, name="Conv2d_3b_1x1")(x)
        x = halve(ConvNorm(192, (3, 3), valid=True, name="Conv2d_4a_3x3")(x))
        for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
            x = Block35(pooled, name=name)(x)
        x = From35To17(name="Mixed_6a")(x)
        for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
            x = Block17(width, name=name)(x)
        x = From17To8(name="Mixed_7a")(x)
        x = Block8(False, name="Mixed_7b")(x)
        x = Block8(True, name="Mixed_7c")(x)
        return x.mean(axis=(1, 2))


@cache
def inception_table() -> dict[str, Entry]:
    """Returns {published name: Entry} of everything that the features depend on."""
    pictures = jax.ShapeDtypeStruct((1, INCEPTION_SIDE, INCEPTION_SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(Inception().init, jax.random.key(0), pictures)

    def name_of(path: str) -> str:
        # The first part is Flax's collection.
        _, *modules, parameter = path.split(".")
        return published_name(".".join(modules), parameter)

    return module_table(shapes, name_of)


def convert_inception(tensors: Mapping[str, Any]) -> PyTree:
    """Converts the published tensors to ``Inception``'s variables.

    Raises:
        LanternError: one line that lists every missing, unexpected and misshapen tensor.
    """
    ignored = [name for name in tensors if name.endswith(".num_batches_tracked")]
    ignored += [
        name for name, shape in _CLASSES.items() if name in tensors and np.shape(tensors[name]) == shape
    ]
    return read_tensors(tensors, inception_table(), what=WHAT, ignored=ignored)


def inception_features(weights: str | Path, preprocessing: str = "clean") -> FeatureReader:
    """Returns the reader of ``pool_3`` with the weights of a file.

    Args:
        weights: ``pt_inception-2015-12-05-6726825d.pth``, or the same tensors as .safetensors.
        preprocessing: one of ``preprocessing.INCEPTION``.

    Raises:
        LanternError: the file cannot be read or holds another network; an unknown preprocessing.
    """
    if preprocessing not in INCEPTION:
        raise errors.unknown("preprocessing", preprocessing, INCEPTION)
    read = network(Inception().apply, convert_inception(open_tensors(weights)))
    return FeatureReader(f"{NAME}, {preprocessing}", WIDTH, INCEPTION[preprocessing], read, usual_batch())
