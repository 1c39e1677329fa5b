"""Tensors in a file: their shapes and dtypes, known before they are read, and reading one."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import open_file


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its shape and dtype are known; ``np.asarray`` reads its values, each time anew.

    Attributes:
        read: reads the values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray] = dataclasses.field(repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise LanternError("the values are in a file: reading them makes a new array")
        values = self.read()
        return values if dtype is None else values.astype(dtype, copy=False)


def stored_tensor(
    path: Path,
    name: str,
    start: int,
    shape: Sequence[int],
    dtype: np.dtype,
    strides: Sequence[int] | None = None,
) -> StoredTensor:
    """Returns the tensor that begins at a byte of a file; ``strides`` count numbers, None means contiguous rows.

    ``span`` must have checked the sizes.
    """
    shape = tuple(shape)
    strides = rows(shape) if strides is None else tuple(strides)
    return StoredTensor(shape, dtype, partial(_read, path, name, start, shape, dtype, strides))


def rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in numbers, of a tensor whose rows are contiguous."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: Any, strides: Any) -> int:
    """Returns how many consecutive numbers a tensor takes up, gaps included.

    Raises:
        LanternError: invalid shape or strides, or a tensor of more numbers than that, which repeats stored ones.
    """
    both = (
        isinstance(shape, tuple | list) and isinstance(strides, tuple | list) and len(shape) == len(strides)
    )
    # `type`, not isinstance: a bool is an int.
    if not both or any(type(size) is not int or not 0 <= size < 2**48 for size in (*shape, *strides)):
        raise LanternError("has a wrong shape")
    count = math.prod(shape)
    taken = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if count else 0
    if count > taken:
        raise LanternError(f"has {count} numbers, of which {taken} are stored")
    return taken


def _read(
    path: Path, name: str, start: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...]
) -> np.ndarray:
    """Reads rather than maps: mapped pages count as process memory, and a shrinking file would end the process."""
    try:
        with open_file(path) as file:
            file.seek(start)
            values = np.fromfile(file, np.uint8, span(shape, strides) * dtype.itemsize).view(dtype)
        if strides == rows(shape):
            return values.reshape(shape)
        steps = [stride * dtype.itemsize for stride in strides]
        return np.ndarray(shape, dtype, values, strides=steps).copy()
    except (OSError, ValueError, TypeError) as error:
        raise LanternError(
            f"{path}: {errors.short(name)} cannot be read ({errors.short(error)}): fetch the file again"
        ) from error
