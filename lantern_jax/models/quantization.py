"""Weights of a target's layers in eight bits: half the bytes that a step of plain decoding reads in bfloat16.

Every output channel of a kernel has a scale of its own, the largest magnitude over 127; products are of the integers,
exactly held by bfloat16, and of the activations as they are, and the scale is applied to the sum. Embeddings, the
head, norms and drafters stay what they were.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, PyTree

from lantern_jax.io.errors import LanternError

# How many leading axes of a layer's kernels are summed over; the rest are those of the outputs.
INPUT_AXES = {"qkv": 1, "out": 2, "gate_up": 1, "down": 1}
KERNEL, SCALE = "kernel", "kernel_scale"
_LEVELS = 127


def quantize(params: PyTree) -> PyTree:
    """The parameters with int8 kernels in their layers and a float32 ``kernel_scale`` beside each; NumPy arrays.

    Raises:
        ValueError: they are quantized already, or have no layers.
    """
    if is_quantized(params):
        raise LanternError(
            "the weights are in eight bits already: give the checkpoint that these were made of"
        )
    made = _map_layers(params, lambda name, leaf: _quantized(np.asarray(leaf, np.float32), INPUT_AXES[name]))
    if not is_quantized(made):
        raise LanternError("there are no layers whose weights could be put into eight bits")
    return made


def _quantized(
    kernel: Float[np.ndarray, "*axes"], inputs: int
) -> tuple[Int8[np.ndarray, "*axes"], Float[np.ndarray, "*outputs"]]:
    scale = np.abs(kernel).max(axis=tuple(range(inputs))) / _LEVELS
    # A channel of zeros stays one.
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(kernel / scale).astype(np.int8), scale


def quantized_shapes(shapes: PyTree) -> PyTree:
    """What ``quantize`` makes of arrays of these shapes."""

    def shape_of(name: str, leaf):
        scale = jax.ShapeDtypeStruct(leaf.shape[INPUT_AXES[name] :], jnp.float32)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.int8), scale

    return _map_layers(shapes, shape_of)


def shapes_as(shapes: PyTree, params: PyTree) -> PyTree:
    """The shapes that a model of these shapes has where its parameters are ``params``."""
    return quantized_shapes(shapes) if is_quantized(params) else shapes


def is_quantized(params: PyTree) -> bool:
    """Whether some kernels have scales."""
    return any(_name(path) == SCALE for path, _ in jax.tree_util.tree_leaves_with_path(params))


def is_fixed(path: tuple, dtype: Any) -> bool:
    """Whether the array of that path keeps its dtype whatever the others are read in: integers and their scales."""
    return jnp.dtype(dtype) == jnp.int8 or _name(path) == SCALE


def scaled(product: Float[Array, "*rows_and_outputs"], scale: Float[Array, "*outputs"] | None):
    """The product of integers with its channels' scales; as it is without them."""
    return product if scale is None else product * jnp.broadcast_to(scale, product.shape)


def _map_layers(tree: PyTree, function) -> PyTree:
    """The nested dicts with (kernel, scale) of the function in place of the kernels of layers."""
    if not isinstance(tree, Mapping):
        return tree
    made = {}
    for name, branch in tree.items():
        if name in INPUT_AXES and isinstance(branch, Mapping) and KERNEL in branch:
            kernel, scale = function(name, branch[KERNEL])
            made[name] = {**branch, KERNEL: kernel, SCALE: scale}
        else:
            made[name] = _map_layers(branch, function)
    return made


def _name(path: tuple) -> Any:
    return getattr(path[-1], "key", None) if path else None
