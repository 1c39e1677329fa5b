"""Memory layouts of parameters and states: those that the compiler chooses for the program that advances a batch.

A TPU reads matrices and caches in tiles, and the compiler chooses which of an array's axes make up a tile. Arrays in
another layout, parameters included, are copied whenever a piece begins and ends: a second model in memory. So the
program that runs most is compiled first, with layouts of its own choice, and its arrays are put into them once.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, PyTree

from lantern_jax.decoding.program import Inputs
from lantern_jax.devices.compilation import compile_ahead
from lantern_jax.devices.partition import DATA, MODEL

# Where the compiler chooses; elsewhere the order of an array's axes is as good as any.
_PLATFORMS = ("tpu",)


def are_chosen(platform: str) -> bool:
    """Tells whether compilers for a platform choose layouts."""
    return platform in _PLATFORMS


def same_layout(leaf: Any) -> Format | Sharding | None:
    """Returns a leaf's place and layout; random keys have no layout to ask for, and other values not even a place."""
    if getattr(leaf, "sharding", None) is None or not getattr(leaf, "committed", True):
        return None
    return getattr(leaf, "format", leaf.sharding)


def shape(leaf: Any) -> Any:
    """Returns an array's shape, dtype, place and layout without the array; other leaves as they are."""
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=same_layout(leaf))


def state_shapes(begin: Callable, beginning: Any, sequences: Any, mesh: Mesh | None, device: Any) -> tuple:
    """Returns the shapes and shardings of (keys, state) as ``begin`` makes them.

    With a model axis the compiler decides how a state is split, so ``begin`` is compiled; otherwise nothing is.
    """
    shapes = jax.eval_shape(begin, beginning, sequences)
    if mesh is not None and MODEL in mesh.axis_names:
        begin, _ = compile_ahead(begin, beginning, sequences)
        return jax.tree.map(placed, shapes, begin.output_shardings)
    rows = (
        jax.sharding.SingleDeviceSharding(device)
        if mesh is None
        else NamedSharding(mesh, PartitionSpec(DATA))
    )
    return jax.tree.map(lambda leaf: placed(leaf, rows), shapes)


def chosen(inputs: Inputs, state: PyTree, laid: tuple[bool, bool] = (False, False)) -> tuple:
    """Returns formats of (inputs, state, rounds) that let the compiler choose the layouts of parameters and state.

    Args:
        inputs, state: arrays, or shapes with shardings.
        laid: whether the parameters of the target and of the drafting are in chosen layouts already, and stay so.
    """
    parameters = (inputs.target_params, inputs.drafting_params)
    target, drafting = (
        jax.tree.map(same_layout if lie else _chosen, tree)
        for tree, lie in zip(parameters, laid, strict=True)
    )
    others = jax.tree.map(same_layout, inputs.replace(target_params=None, drafting_params=None))
    formats = others.replace(target_params=target, drafting_params=drafting)
    return formats, jax.tree.map(_chosen, state), None


def to_lower(arguments: PyTree, formats: PyTree) -> PyTree:
    """Returns shapes to compile for: those whose layout is to be chosen must have none."""

    def bare(format, leaf):
        is_open = isinstance(format, Format) and format.layout is Layout.AUTO
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_open else leaf

    return jax.tree.map(bare, formats, arguments, is_leaf=lambda format: format is None)


def choosing(inputs: Inputs, state: PyTree, laid: tuple[bool, bool]) -> tuple[tuple, dict[str, Any]]:
    """Returns arguments and options for compiling ``advance`` so that its compiler chooses layouts.

    Takes the arguments of ``chosen``; the options are those of ``compile_ahead``.
    """
    arguments = inputs, state, np.int32(1)
    formats = chosen(inputs, state, laid)
    options = {"donate": "state", "results": (formats[1], None), "formats": formats}
    return to_lower(arguments, formats), options


def put(tree: PyTree, formats: PyTree, placed: dict[tuple, Array]) -> PyTree:
    """Puts a tree's arrays into layouts one by one, dropping each old array as it goes.

    Args:
        tree: a list with the tree as its only entry, which is taken out: nothing else should hold the arrays.
        formats: of its leaves; None where none was asked for.
        placed: arrays put before, by the identity of the old array and the format; grows. A head that target and
            drafter share stays one array if both want the same layout.
    """
    leaves, structure = jax.tree.flatten(tree.pop())
    wanted = jax.tree.leaves(formats, is_leaf=lambda leaf: leaf is None or isinstance(leaf, Format))
    for number, format in enumerate(wanted):
        leaf, leaves[number] = leaves[number], None
        key = id(leaf), format
        if key not in placed:
            fits = format is None or format.layout is None or format == leaf.format
            placed[key] = leaf if fits else jax.block_until_ready(jax.device_put(leaf, format))
        leaves[number] = placed[key]
    return structure.unflatten(leaves)


def placed(leaf: Any, where: Format | Sharding) -> jax.ShapeDtypeStruct:
    """Returns a leaf's shape and dtype with a place, and a layout if there is one."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def _chosen(leaf) -> Format:
    return Format(Layout.AUTO, leaf.sharding)
