"""Reading published tensors into a parameter tree, strictly: every name and every shape must match.

A converter describes a checkpoint as a table {published name: Entry} and calls `read_tensors` once. Most tables follow
from a Flax module's shapes and the names of its parts: `module_table`. Tensors may be arrays, or
`tensor_files.StoredTensor`s that are read one by one.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.tensors.stored_tensor import StoredTensor


def identity(tensor: np.ndarray) -> np.ndarray:
    return tensor


def transpose(tensor: np.ndarray) -> np.ndarray:
    """Turns PyTorch's linear weight [out, in] into a Flax kernel [in, out]."""
    kernel = np.empty(tensor.shape[::-1], tensor.dtype)
    # A few rows at a time stay in the processor's cache: four times as fast as all together.
    for start in range(0, len(tensor), 16):
        kernel[:, start : start + 16] = tensor[start : start + 16].T
    return kernel


def convolution(tensor: np.ndarray) -> np.ndarray:
    """Turns PyTorch's 2-D convolution weight [out, in, h, w] into a Flax kernel [h, w, in, out]."""
    return np.ascontiguousarray(tensor.transpose(2, 3, 1, 0))


def reordered_rows(order: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the transform that takes rows in this order, which may leave some out; None keeps them as they are."""
    return identity if order is None else lambda tensor: np.take(tensor, order, axis=0)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where a published tensor goes.

    Attributes:
        path: its path in the parameter tree.
        shape: its shape as published.
        transform: turns its published values into ours.
        whole: the shape of our array if the tensor is only a part of it.
        index: the place of that part.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[[np.ndarray], np.ndarray] = identity
    whole: tuple[int, ...] | None = None
    index: tuple[Any, ...] = ()


# What PyTorch's modules call a Flax parameter.
_PYTORCH = {
    "kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias", "mean": "running_mean",
    "var": "running_var",
}  # fmt: skip
# Our name of a module or parameter, with {i} for a number -> the published one, or those that ours joins side by side.
Names = Mapping[str, str | tuple[str, ...]]


def published_name(place: str, parameter: str) -> str:
    """Returns the name of a Flax parameter in a PyTorch module at ``place``."""
    return f"{place}.{_PYTORCH[parameter]}"


def named_by(names: Names) -> Callable[[str], str | tuple[str, ...]]:
    """Returns a function that gives a parameter's published name, from its own entry in a table or its module's.

    Example:
        >>> named_by({"layer_{i}.up": "blocks.{i}.fc1", "positions": "embed"})("layer_3.up.kernel")
        'blocks.3.fc1.weight'
    """

    def name_of(path: str) -> str | tuple[str, ...]:
        number = re.search(r"(?<=_)\d+(?=\.|$)", path)
        key = path if number is None else f"{path[: number.start()]}{{i}}{path[number.end() :]}"
        module, _, parameter = key.rpartition(".")
        found = names[key] if key in names else names[module]
        places = (found,) if isinstance(found, str) else found
        if key not in names:
            places = tuple(published_name(place, parameter) for place in places)
        places = places if number is None else tuple(place.format(i=number[0]) for place in places)
        return places[0] if isinstance(found, str) else places

    return name_of


def module_table(shapes: PyTree, name_of: Callable[[str], str | tuple[str, ...]]) -> dict[str, Entry]:
    """Lists {published name: Entry} of a Flax module whose weights are published in PyTorch's layout.

    A kernel whose published name does not end in "weight" belongs to no PyTorch module, and is laid out like ours.

    Args:
        shapes: nested dicts of the module's parameters, as from ``jax.eval_shape``.
        name_of: a parameter's path, joined with dots -> its published name, or several that ours joins side by side.
    """
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    found = [(tuple(key.key for key in keys), leaf) for keys, leaf in leaves]
    table = {}
    for path, leaf in sorted(found, key=lambda item: _order(item[0])):
        names = name_of(".".join(path))
        if isinstance(names, str):
            table[names] = Entry(path, *_as_published(names, path, leaf.shape))
            continue
        width = leaf.shape[-1] // len(names)
        for i, name in enumerate(names):
            part = _as_published(name, path, (*leaf.shape[:-1], width))
            table[name] = Entry(path, *part, leaf.shape, (..., slice(i * width, (i + 1) * width)))
    return table


def _as_published(
    name: str, path: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], Callable[[np.ndarray], np.ndarray]]:
    """Returns the published shape of a parameter, and how to turn its values."""
    if path[-1] != "kernel" or not name.endswith("weight"):
        return shape, identity
    return (*shape[:-3:-1], *shape[:-2]), convolution if len(shape) == 4 else transpose


def _order(path: tuple[str, ...]) -> tuple[list[Any], bool]:
    """Returns a key that sorts parameters by the numbers in their names, a module's bias last."""
    words = re.split(r"(\d+)", ".".join(path[:-1]))
    return [int(word) if word.isdecimal() else word for word in words], path[-1] == "bias"


def describe_mismatch(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()
) -> str:
    """Compares two {name: shape}; names the missing, unexpected and misshapen arrays in one line, up to twenty of each.

    Returns "" if all match.
    """
    ignored = set(ignored)
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected and name not in ignored]
    misshapen = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    groups = (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen))
    return "; ".join(
        f"{len(names)} {word}: {errors.listed(names, 20, 160)}" for word, names in groups if names
    )


def read_tensors(
    tensors: Mapping[str, Any],
    table: Mapping[str, Entry],
    *,
    what: str,
    ignored: Iterable[str] = (),
    dtype: Any = np.float32,
    shapes: PyTree | None = None,
) -> dict[str, Any]:
    """Reads the parameter tree that `table` describes: nested dicts of NumPy arrays of `dtype`.

    Besides the result, memory holds one tensor at a time: the published one and its copies until it is transformed.

    Args:
        tensors: {name: NumPy array, or anything with `.shape` and the array interface}.
        what: names the checkpoint in errors.
        ignored: names that may be present but are not read.
        shapes: of the result's arrays, nested dicts. Given them, nothing is read here: the leaves are `StoredTensor`s,
            each read from the published tensors whenever it is turned into an array.

    Raises:
        LanternError: one line that lists all missing, unexpected and misshapen tensors, or those that hold no
            floating-point numbers, before any value is read.
    """
    found = {name: tuple(np.shape(tensor)) for name, tensor in tensors.items()}
    mismatch = describe_mismatch(found, {name: entry.shape for name, entry in table.items()}, ignored)
    if mismatch:
        raise LanternError(
            f"these tensors are not a {what}: {mismatch}; give the matching checkpoint or config"
        )
    counts = [
        f"{name} ({tensors[name].dtype})"
        for name in table
        if not jax.dtypes.issubdtype(getattr(tensors[name], "dtype", np.float32), np.floating)
    ]
    if counts:
        raise LanternError(
            f"{len(counts)} tensors of this {what} hold whole numbers or flags, not weights: {errors.listed(counts)}; "
            "give the weights from before they were quantized"
        )
    parts: dict[tuple[str, ...], dict[str, Entry]] = {}
    for name, entry in table.items():
        parts.setdefault(entry.path, {})[name] = entry
    if shapes is not None:
        expected = {path: leaf.shape for path, leaf in flatten_dict(shapes).items()}

        def read(path: tuple[str, ...]) -> np.ndarray:
            values = _joined(tensors, parts[path], dtype)
            if values.shape != expected[path]:
                raise LanternError(
                    f"{'.'.join(path)} of this {what} becomes {values.shape}, the model has {expected[path]}: "
                    "correct the converter"
                )
            return values

        return unflatten_dict(
            {path: StoredTensor(expected[path], np.dtype(dtype), partial(read, path)) for path in parts}
        )
    return unflatten_dict({path: _joined(tensors, entries, dtype) for path, entries in parts.items()})


def _joined(tensors: Mapping[str, Any], entries: Mapping[str, Entry], dtype: Any) -> np.ndarray:
    """Reads one of our arrays: a published tensor, transformed, or several side by side in the shape ``whole``."""
    whole = next(iter(entries.values())).whole
    # Numbers too large for the dtype are reported when the checkpoint is written.
    with np.errstate(over="ignore"):
        if whole is None:
            ((name, entry),) = entries.items()
            return np.asarray(entry.transform(np.asarray(tensors[name])), dtype)
        made = np.empty(whole, dtype)
        for name, entry in entries.items():
            made[entry.index] = entry.transform(np.asarray(tensors[name]))
        return made
