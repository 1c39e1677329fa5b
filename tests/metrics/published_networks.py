"""VGG's weights as they are published, with synthetic values."""

import numpy as np

from lantern_jax.apps.metrics.vgg import VGG, vgg_table
from tests.golden_cases import golden_weight

TINY_VGG = VGG(widths=((4,), (4, 4), (6,), (6,), (8,)), hidden=16)


def vgg_tensors() -> dict[str, np.ndarray]:
    """Returns the tensors of ``TINY_VGG``, with the classification layer."""
    tensors = {name: golden_weight(name, entry.shape, 0) for name, entry in vgg_table(TINY_VGG).items()}
    tensors["classifier.6.weight"], tensors["classifier.6.bias"] = np.zeros((9, 16)), np.zeros(9)
    return tensors
