"""VGG16 up to its second fully connected layer: the features of precision and recall (arXiv 1904.06991).

The network is that of arXiv 1409.1556 with torchvision's weights for ImageNet.

Axes: n pictures, h w height and width, c channels, F features.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from lantern_jax.apps.foreign.tensor_files import open_tensors
from lantern_jax.apps.metrics.features import FeatureReader, network, usual_batch
from lantern_jax.apps.metrics.preprocessing import VGG_SIDE, vgg_imagenet
from lantern_jax.tensors.matching import Entry, module_table, named_by, read_tensors

WHAT = "VGG16 (torchvision's vgg16-397923af.pth)"
_NAMES = {"conv_{i}": "features.{i}", "fc1": "classifier.0", "fc2": "classifier.3"}


class VGG(nn.Module):
    """The network from normalized pictures of 224 x 224 to its second fully connected layer; VGG16's sizes by default.

    Attributes:
        widths: of the convolutions before each halving.
        hidden: width of the two fully connected layers.
        rectified: whether the last layer's ReLU is applied.
    """

    widths: tuple[tuple[int, ...], ...] = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
    hidden: int = 4096
    rectified: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "n h w 3"]) -> Float[Array, "n F"]:
        # Numbered as published: each convolution takes two numbers, each halving one.
        number = 0
        for widths in self.widths:
            for width in widths:
                x = nn.relu(nn.Conv(width, (3, 3), padding=1, name=f"conv_{number}")(x))
                number += 2
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
            number += 1
        # Published weights read the channels one after the other.
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        x = nn.relu(nn.Dense(self.hidden, name="fc1")(x))
        x = nn.Dense(self.hidden, name="fc2")(x)
        return nn.relu(x) if self.rectified else x


def vgg_table(network: VGG) -> dict[str, Entry]:
    """Returns {published name: Entry} of everything that the features depend on."""
    pictures = jax.ShapeDtypeStruct((1, VGG_SIDE, VGG_SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(network.init, jax.random.key(0), pictures)
    return module_table(shapes["params"], named_by(_NAMES))


def convert_vgg(tensors: Mapping[str, Any], sizes: VGG) -> PyTree:
    """Converts the published tensors to ``VGG``'s variables; the layer of the classes is not read."""
    ignored = [name for name in tensors if name.startswith("classifier.6.")]
    return {"params": read_tensors(tensors, vgg_table(sizes), what=WHAT, ignored=ignored)}


def vgg_features(
    weights: str | Path, preprocessing: str = "linear", sizes: VGG | None = None
) -> FeatureReader:
    """Returns the reader of ``fc2`` with the weights of a file.

    Args:
        weights: torchvision's ``vgg16-397923af.pth``, or the same tensors as .safetensors.
        preprocessing: "linear" reads before the ReLU, as LANTERN does, "relu" after it, as torch-fidelity does.
        sizes: None for VGG16's.

    Raises LanternError where the file cannot be read or holds another network.
    """
    rectified = preprocessing == "relu"
    vgg = (sizes or VGG()).clone(rectified=rectified)
    read = network(vgg.apply, convert_vgg(open_tensors(weights), vgg))
    name = f"vgg16 fc2 {'after' if rectified else 'before'} ReLU"
    return FeatureReader(name, vgg.hidden, vgg_imagenet, read, usual_batch())
