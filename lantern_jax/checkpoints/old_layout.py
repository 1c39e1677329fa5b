"""Kernels as checkpoint directories held them before heads, gates and their likes had axes of their own.

They were matrices, inputs by outputs: qkv [D, 3 * H * E], out [H * E, D], gate_up [D, 2 * F]. The bytes lie in the
same order as today, so an array of such a directory is reshaped, nothing more.
"""

import math
from typing import Any

import jax
from jaxtyping import PyTree

from lantern_jax.models.transformer import INPUT_AXES


def current_shapes(stored: PyTree, expected: PyTree) -> PyTree:
    """The stored shapes and dtypes, where those in the old layout have the shape that is expected of them now.

    Args:
        stored, expected: nested dicts of ``jax.ShapeDtypeStruct``; they may differ in other ways too.
    """
    wanted = dict(jax.tree_util.tree_flatten_with_path(expected)[0])

    def current(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if path not in wanted or leaf.shape != _old_shape(path, wanted[path].shape):
            return leaf
        return jax.ShapeDtypeStruct(wanted[path].shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(current, stored)


def _old_shape(path: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The old shape of an array that now has ``shape``."""
    module = path[-2].key if len(path) > 1 else ""
    if module not in INPUT_AXES or path[-1].key != "kernel" or len(shape) < 3:
        return shape
    inputs = INPUT_AXES[module]
    return math.prod(shape[:inputs]), math.prod(shape[inputs:])
