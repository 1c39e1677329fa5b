"""Checkpoint directories as older versions wrote them.

Kernels were matrices, inputs by outputs, before heads, gates and their likes had axes of their own: qkv
[D, 3 * H * E], out [H * E, D], gate_up [D, 2 * F]. The bytes lie in the same order as today, so an array of such a
directory is reshaped, nothing more.

In format version 1 a checkpoint had one drafter, of the kind "eagle", under the name "drafter".
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import PyTree

from lantern_jax.quantization import INPUT_AXES

ONE_DRAFTER_VERSION = 1


def current_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``config.json`` of any version, as one of today's has it; its version stays."""
    config = dict(config)
    if config["version"] == ONE_DRAFTER_VERSION:
        drafter = config.pop("drafter", None)
        config["drafters"] = {} if drafter is None else {"eagle": drafter}
    return config


def current_names(tree: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Arrays by their names of today: the one drafter is the only one of ``drafters``."""
    named = dict(tree)
    if "drafter" in named:
        named["drafters"] = {"eagle": named.pop("drafter")}
    return named


def old_names(tree: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Arrays by the names of format version 1: ``current_names`` backwards."""
    named = dict(tree)
    if "eagle" in named.get("drafters", ()):
        named["drafter"] = named.pop("drafters")["eagle"]
    return named


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
