"""Models over several devices: which axis of a parameter is split, and how the work on a sequence is.

A mesh has the axes "data", over which sequences are spread, and "model", over which heads, feed-forward columns and
codes are. Programs are manual over "data" alone (``over_mesh``): code sees one group's sequences.
Along "model" the compiler splits the computation as the parameters are split; ``split`` and ``whole`` tell it where
it would choose otherwise. Without a model axis both change nothing.

Axes: V codes.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)
from jaxtyping import Array, PyTree

from lantern_jax.devices.platform import check_platform
from lantern_jax.io import errors

# Groups of devices that sequences are spread over, and the devices of a group that share one model.
DATA, MODEL = AXES = ("data", "model")

_WHOLE = None
# The first rule with as many axes whose pattern ends a parameter's path decides; other parameters are whole.
# Heads, feed-forward columns and codes have axes of their own, so that what is split stays so from product to product.
# Embeddings are split along the width: a look-up then moves nothing but the rows it found.
_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"qkv/kernel", (_WHOLE, _WHOLE, MODEL, _WHOLE)),
    (r"out/kernel", (MODEL, _WHOLE, _WHOLE)),
    (r"gate_up/kernel", (_WHOLE, _WHOLE, MODEL)),
    (r"down/kernel", (MODEL, _WHOLE)),
    # Scales of kernels in eight bits, one per output.
    (r"qkv/(kernel_scale|bias)", (_WHOLE, MODEL, _WHOLE)),
    (r"gate_up/kernel_scale", (_WHOLE, MODEL)),
    (r"(query|key)_norm/(scale|bias)", (MODEL, _WHOLE)),
    (r"head(/kernel)?", (_WHOLE, MODEL)),
    # A head of two products.
    (r"head/(hidden|codes)/kernel", (_WHOLE, MODEL)),
    (r"head/(hidden|codes)/bias", (MODEL,)),
    # Of low rank: the rows are small, the products with ``out`` as large as a head's.
    (r"markov/tokens/embedding", (_WHOLE, _WHOLE)),
    (r"markov/out", (_WHOLE, MODEL)),
    (r"(tokens|labels)/embedding", (_WHOLE, MODEL)),
    # A caption's projection: columns, then rows.
    (r"caption/fc1/kernel", (_WHOLE, MODEL)),
    (r"caption/fc2/kernel", (MODEL, _WHOLE)),
    # Drafters: the product that joins token and feature, Medusa's blocks and heads.
    (r"fc/kernel", (_WHOLE, MODEL)),
    (r"fc/bias", (MODEL,)),
    (r"params/kernel", (_WHOLE, _WHOLE, _WHOLE, MODEL)),
    (r"params/bias", (_WHOLE, _WHOLE, MODEL)),
    (r"params/heads", (_WHOLE, _WHOLE, MODEL)),
)
# Kernels whose first axis is that of their inputs and which have several of outputs, and caches.
_BY_INPUTS, _CACHES = re.compile(r"(^|/)(qkv|gate_up)/kernel$"), re.compile(r"(^|/)cache/layers/")
# The platforms whose arrays lie in tiles, and the entries of the last axis in one.
_TILED, _LANES = ("tpu",), 128
# Parts that are whole on every device.
_WHOLE_PARTS = ("tokenizer", "text_encoder", "codebook", "neighbours", "codes")


def parameter_spec(path: Sequence[str], shape: Sequence[int], shards: int) -> PartitionSpec:
    """Returns how a parameter lies on ``shards`` devices of the model axis; an axis that does not divide stays whole.

    Args:
        path: names from the outside in: "target", "params", "head", "kernel".
    """
    if path and path[0] in _WHOLE_PARTS:
        return PartitionSpec()
    name = "/".join(path)
    for pattern, axes in _RULES:
        if len(axes) == len(shape) and re.search(rf"(^|/){pattern}$", name):
            pairs = zip(axes, shape, strict=True)
            return PartitionSpec(*(axis if axis and size % shards == 0 else None for axis, size in pairs))
    return PartitionSpec()


# Where parameters go: all to one place, or each to its own on a mesh with a model axis.
Where = Sharding | Mesh


def sharding_at(where: Where, path: Sequence[Any], shape: Sequence[int]) -> Sharding:
    """Returns where the parameter at that path goes; a path is keys of a JAX tree, or names."""
    if isinstance(where, Sharding):
        return where
    return NamedSharding(where, parameter_spec(_name_of(path).split("/"), shape, where.shape[MODEL]))


def format_at(where: Where, path: Sequence[Any], shape: Sequence[int]) -> Sharding | Format:
    """Returns where the parameter or cache at that path goes and, on TPUs, in which layout.

    There loops read kernels in tiles of inputs and outputs, and caches in tiles of slots and channels, where slots fill
    the lanes if heads are narrow. What lies in others is copied when a program begins: by the compiler's account a
    second model in memory.
    """
    sharding, name = sharding_at(where, path, shape), _name_of(path)
    is_cache, by_inputs, axes = _CACHES.search(name), _BY_INPUTS.search(name), range(len(shape))
    if not (is_cache or by_inputs) or not is_tiled(next(iter(sharding.device_set))):
        return sharding
    is_wide = shape[-1] % _LANES == 0
    if is_cache:
        return Format(Layout((*axes,) if is_wide else (*axes[:-2], axes[-1], axes[-2])), sharding)
    return Format(Layout((*axes[1:-1], 0, axes[-1])), sharding) if is_wide else sharding


def is_tiled(device: Any) -> bool:
    """Tells whether layouts matter on a device."""
    return device.platform in _TILED


def _name_of(path: Sequence[Any]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def places_of(tree: PyTree, where: Where | None = None) -> PyTree:
    """Returns ``format_at`` of each of a tree's arrays; None for ``where`` leaves them where they are."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: format_at(leaf.sharding if where is None else where, path, leaf.shape), tree
    )


def place(tree: PyTree, where: Where) -> PyTree:
    """Puts a tree's arrays where they belong."""
    return jax.tree.map(put, tree, places_of(tree, where))


def described(tree: PyTree, where: Where) -> PyTree:
    """Returns the shapes of a tree's arrays where they belong."""
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        tree, places_of(tree, where),
    )  # fmt: skip


def everywhere(tree: PyTree, mesh: Mesh) -> PyTree:
    """Puts a tree's host values whole on every device; other processes, which have the same values, do so too."""

    def spread(leaf):
        is_there = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        return leaf if is_there else put(np.asarray(leaf), NamedSharding(mesh, PartitionSpec()))

    return jax.tree.map(spread, tree)


def put(leaf: Any, where: Sharding | Format) -> Array:
    """Puts an array where it belongs."""
    sharding = where.sharding if isinstance(where, Format) else where
    if sharding.is_fully_addressable or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
        return jax.device_put(leaf, where)
    # Each process puts its own devices' parts; ``device_put`` would first send all of it around to compare.
    return jax.make_array_from_callback(leaf.shape, where, np.asarray(leaf).__getitem__)


def shards() -> int:
    """Returns how many devices the model is split over in the program being traced; 1 without a model axis."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or MODEL not in mesh.axis_names:
        return 1
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return mesh.shape[MODEL] if types[MODEL] == AxisType.Auto else 1


def divides(size: int) -> bool:
    """Tells whether there is a model axis that an axis of ``size`` entries is split over."""
    count = shards()
    return count > 1 and size % count == 0


def split(array: Array, axis: int) -> Array:
    """Splits an axis of an array over the model axis; the array stays whole if the axis does not divide."""
    if shards() == 1:
        return array
    spec = _along(array, axis) if divides(array.shape[axis]) else PartitionSpec()
    return jax.lax.with_sharding_constraint(array, spec)


def _along(array: Array, axis: int) -> PartitionSpec:
    return PartitionSpec(*(MODEL if place == axis % array.ndim else None for place in range(array.ndim)))


def whole(array: Array) -> Array:
    """Makes an array the same on every device of the model axis."""
    return array if shards() == 1 else jax.lax.with_sharding_constraint(array, PartitionSpec())


def on_shards(function: Callable[[Array], Any], array: Array, axis: int) -> Any:
    """Runs ``function`` on each device's part of an array whose axis is split; its results are split likewise.

    For work that the compiler cannot split: it would gather the array.
    """
    spec = _along(array, axis)
    return jax.shard_map(function, in_specs=spec, out_specs=spec, axis_names={MODEL}, check_vma=False)(array)


def varying_like(tree: Any, source: Array) -> Any:
    """Makes the arrays of ``tree`` vary along the ``shard_map`` axes of ``source``, as loop carries must.

    A select between two equal values: it carries the type and compiles to nothing, inside ``shard_map`` (with
    ``check_vma`` or without) and outside. (JAX's own name for this, and that of the axes, changed between versions.)

    Args:
        tree: pytree of arrays, random keys included.
        source: an array, or random keys, with at least one entry.
    """
    if jnp.issubdtype(source.dtype, jax.dtypes.prng_key):
        source = jax.random.key_data(source)
    entry = source[(0,) * source.ndim].astype(bool)
    return jax.tree.map(lambda leaf: jnp.where(entry, leaf, leaf), tree)


def mesh_sizes(text: str) -> dict[str, int]:
    """Parses a text such as "data=2,model=4" into {"data": devices, "model": devices}; an axis left out has one.

    Raises:
        LanternError: any other text.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        is_size = number.isdecimal() and len(number) < 10 and int(number) >= 1
        if name not in AXES or name in sizes or not sign or not is_size:
            raise errors.invalid("mesh", text, 'axes with their devices, such as "data=2,model=4"')
        sizes[name] = int(number)
    return {name: sizes.get(name, 1) for name in AXES}


def device_grid(devices: "str | Mesh | Sequence[Any] | np.ndarray | None") -> np.ndarray:
    """Returns the devices of a mesh, [data, model].

    Args:
        devices: a text as ``mesh_sizes`` takes it, whose devices are the first ones there are, and must be all of them
            if there are several processes (``jax.distributed``); a mesh with axes of those names, one or both, in any
            order; devices [data] or [data, model]; None for all devices of this process, each with a whole model.

    Raises:
        LanternError: an invalid text or axis, a number of devices that does not fit those there are, or a platform that
            JAX is asked for and does not have here.
    """
    check_platform()
    if isinstance(devices, str):
        shape, there = tuple(mesh_sizes(devices).values()), jax.devices()
        if math.prod(shape) > len(there):
            raise errors.invalid("mesh", devices, f"at most {len(there)} device(s), which is what there is")
        if jax.process_count() > 1 and math.prod(shape) < len(there):
            wanted = f"all {len(there)} devices of the {jax.process_count()} processes"
            raise errors.invalid("mesh", devices, wanted)
        return np.array(there[: math.prod(shape)]).reshape(shape)
    if isinstance(devices, Mesh):
        names = devices.axis_names
        if not names or not set(names) <= set(AXES):
            raise errors.invalid("mesh", names, "axes with the names data and model, one or both")
        order = [names.index(name) for name in AXES if name in names]
        return devices.devices.transpose(order).reshape([devices.shape.get(name, 1) for name in AXES])
    grid = np.array(jax.local_devices() if devices is None else devices)
    if not grid.ndim:
        raise errors.invalid("mesh", devices, 'a text such as "data=2,model=4" or a jax.sharding.Mesh')
    return grid[:, None] if grid.ndim == 1 else grid


def spans(grid: np.ndarray) -> bool:
    """Tells whether the devices belong to several processes."""
    return len({device.process_index for device in grid.ravel()}) > 1


def mesh_of(grid: np.ndarray) -> Mesh | None:
    """Returns the mesh of devices [data, model], without a model axis of one; None for a single device."""
    if grid.shape[1] > 1:
        return Mesh(grid, AXES)
    return None if grid.size == 1 else Mesh(grid[:, 0], (DATA,))


def where_on(grid: np.ndarray) -> Where:
    """Returns where the parameters of a model go on devices [data, model]."""
    mesh = mesh_of(grid)
    if mesh is None:
        return SingleDeviceSharding(grid[0, 0])
    return mesh if MODEL in mesh.axis_names else NamedSharding(mesh, PartitionSpec())


@contextlib.contextmanager
def outside_mesh() -> Iterator[None]:
    """Hides the mesh that a caller gave ``jax.set_mesh``, which would put arrays and programs on its devices."""
    if jax.sharding.get_abstract_mesh().empty:
        yield
    else:
        with jax.set_mesh(Mesh(np.empty((), object), ())):
            yield


def over_mesh(function, mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...], in_specs, out_specs):
    """Puts ``function`` under ``shard_map``, manual over these axes of the mesh alone."""
    # A mesh from jax.make_mesh has explicit axes; the loop sets its own types, in any context.
    mesh = mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False,
        axis_names={axes} if isinstance(axes, str) else set(axes),
    )  # fmt: skip

    def run(*arguments):
        with jax.sharding.use_abstract_mesh(mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh):
            return mapped(*arguments)

    return run
