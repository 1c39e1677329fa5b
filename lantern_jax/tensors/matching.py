"""Reading published tensors into a parameter tree, strictly: every name and every shape must match.

A converter describes a checkpoint as a table {published name: Entry} and calls `read_tensors` once. Tensors may be
arrays, or `tensor_files.StoredTensor`s that are read one by one.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError


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
    """Returns the transform that takes rows in an order, which may leave some out; None takes them as they are."""
    return identity if order is None else lambda tensor: np.take(tensor, order, axis=0)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where a published tensor goes: its path in the parameter tree, its published shape, and how its values
    are turned.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[[np.ndarray], np.ndarray] = identity


def describe_mismatch(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()
) -> str:
    """Names the missing, unexpected and misshapen arrays in one line, twenty of each, given {name: shape} twice; empty
    where all is right.
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


# Called after each tensor with the bytes that the values read so far, and all of them, take in the wanted dtype.
Progress = Callable[[int, int], None]


def read_tensors(
    tensors: Mapping[str, Any],
    table: Mapping[str, Entry],
    *,
    what: str,
    ignored: Iterable[str] = (),
    dtype: Any = np.float32,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Reads the parameter tree, nested dicts of NumPy arrays of `dtype`, that `table` describes.

    Beside the result, memory holds one tensor at a time: the published one and its copies until it has its form.

    Args:
        tensors: {name: NumPy array, or anything with `.shape` and the array interface}.
        what: names the checkpoint in errors.
        ignored: names that may be present and are not read.
        progress: told how much has been read.

    Raises:
        LanternError: one line that lists all missing, unexpected and misshapen tensors, before any value is read.
    """
    found = {name: tuple(np.shape(tensor)) for name, tensor in tensors.items()}
    mismatch = describe_mismatch(found, {name: entry.shape for name, entry in table.items()}, ignored)
    if mismatch:
        raise LanternError(
            f"these tensors are not a {what}: {mismatch}; give the matching checkpoint or config"
        )
    params: dict[str, Any] = {}
    sizes = {name: math.prod(entry.shape) * np.dtype(dtype).itemsize for name, entry in table.items()}
    done, total = 0, sum(sizes.values())
    for name, entry in table.items():
        parent = params
        for part in entry.path[:-1]:
            parent = parent.setdefault(part, {})
        parent[entry.path[-1]] = np.asarray(entry.transform(np.asarray(tensors[name])), dtype)
        done += sizes[name]
        if progress is not None:
            progress(done, total)
    return params
