"""A target's layer weights in eight bits: half the bytes that a step of plain decoding reads in bfloat16.

Every output channel of a kernel has its own scale, the largest magnitude over 127. Activations are multiplied by the
integers, which bfloat16 holds exactly, and the scale is applied to the sum. Embeddings, the head, norms and drafters
are not quantized.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, PyTree

from lantern_jax.io.errors import LanternError

# Number of leading axes of a layer's kernels that are summed over; the rest are axes of the outputs.
INPUT_AXES = {"qkv": 1, "out": 2, "gate_up": 1, "down": 1}
KERNEL, SCALE = "kernel", "kernel_scale"
_LEVELS = 127


def quantize(params: PyTree) -> PyTree:
    """Returns the parameters with int8 kernels in their layers and a float32 ``kernel_scale`` beside each, in NumPy.

    Raises:
        LanternError: they are quantized already, or have no layers.
    """
    if is_quantized(params):
        raise LanternError(
            "the weights are in eight bits already: give the checkpoint that these were made from"
        )
    made = _map_layers(params, lambda name, leaf: _quantized(np.asarray(leaf, np.float32), INPUT_AXES[name]))
    if not is_quantized(made):
        raise LanternError("no layer's weights can be put into eight bits: give a target's parameters")
    return made


def _quantized(
    kernel: Float[np.ndarray, "*axes"], inputs: int
) -> tuple[Int8[np.ndarray, "*axes"], Float[np.ndarray, "*outputs"]]:
    scale = np.abs(kernel).max(axis=tuple(range(inputs))) / _LEVELS
    # A channel of zeros has no scale of its own.
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.rint(kernel / scale).astype(np.int8), scale


def quantized_shapes(shapes: PyTree) -> PyTree:
    """Returns the shapes that ``quantize`` would give arrays of these shapes."""

    def shape_of(name: str, leaf):
        scale = jax.ShapeDtypeStruct(leaf.shape[INPUT_AXES[name] :], jnp.float32)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.int8), scale

    return _map_layers(shapes, shape_of)


def shapes_as(shapes: PyTree, params: PyTree) -> PyTree:
    """Returns the quantized shapes if ``params`` are quantized, else the shapes themselves."""
    return quantized_shapes(shapes) if is_quantized(params) else shapes


def is_quantized(params: PyTree) -> bool:
    """Tells whether any kernel has a scale."""
    return any(_name(path) == SCALE for path, _ in jax.tree_util.tree_leaves_with_path(params))


def is_fixed(path: tuple, dtype: Any) -> bool:
    """Tells whether the array at a path, an int8 kernel or its scale, keeps its dtype when parameters are cast."""
    return jnp.dtype(dtype) == jnp.int8 or _name(path) == SCALE


def scaled(product: Float[Array, "*rows_and_outputs"], scale: Float[Array, "*outputs"] | None):
    """Multiplies a product of integers by its channels' scales, if there are any."""
    return product if scale is None else product * jnp.broadcast_to(scale, product.shape)


def _map_layers(tree: PyTree, function) -> PyTree:
    """Replaces every layer's kernel in nested dicts by the (kernel, scale) that the function returns."""
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
