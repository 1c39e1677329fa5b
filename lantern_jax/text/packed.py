"""Rows of differing lengths, padded, and padded arrays stored without their padding.

Without padding, the features of thirty thousand captions take a few gigabytes instead of many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

# Prefix lengths: prompts are padded to the next one, so that a new prompt rarely needs a new program compiled.
BUCKETS = (64, 128, 256, 512, 1024)


def padded_rows(
    rows: Sequence[Sequence[int]], length: int, padding: int = 0, *, left: bool = False
) -> tuple[Int[np.ndarray, "n P"], Bool[np.ndarray, "n P"]]:
    """Returns int32 ids in rows of one length, padded on the right (or ``left``), and a mask, False at padding."""
    ids = np.full((len(rows), length), padding, np.int32)
    mask = np.zeros(ids.shape, bool)
    for i, row in enumerate(rows):
        place = slice(length - len(row), length) if left else slice(len(row))
        ids[i, place], mask[i, place] = row, True
    return ids, mask


def bucket_of(rows: Sequence[Sequence[int]]) -> int:
    """Returns the least of ``BUCKETS`` that holds all rows."""
    longest = max(map(len, rows))
    return next(size for size in BUCKETS if size >= longest)


def check_lengths(prompts: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Raises LanternError for a prompt whose row is longer than the last bucket."""
    for prompt, row in zip(prompts, rows, strict=True):
        if len(row) > BUCKETS[-1]:
            raise LanternError(
                f"prompt {errors.quoted(prompt, 40)} has {len(row)} tokens with the model's own, "
                f"more than {BUCKETS[-1]}: shorten it"
            )


@dataclass(frozen=True, eq=False)
class PackedRows:
    """An array [n, P, F] that is 0 outside a mask; ``packed[rows]`` is a NumPy array [b, P, F].

    Attributes:
        values: [number of True in the mask, F], row after row.
        mask: bool [n, P].

    Raises LanternError if the number of values is wrong.
    """

    values: Shaped[np.ndarray, "kept F"]
    mask: Bool[np.ndarray, "n P"]

    def __post_init__(self):
        if self.values.ndim != 2 or self.mask.ndim != 2 or len(self.values) != np.count_nonzero(self.mask):
            raise LanternError(
                f"values {self.values.shape} under a mask {self.mask.shape} of {np.count_nonzero(self.mask)}: "
                "give one for each True"
            )
        ends = np.cumsum(self.mask.sum(axis=1))
        object.__setattr__(self, "_starts", np.concatenate([[0], ends]))

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.mask.shape, self.values.shape[1])

    @property
    def ndim(self) -> int:
        return 3

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, rows: Int[np.ndarray, " b"] | slice) -> Shaped[np.ndarray, "b P F"]:
        chosen = np.arange(len(self))[rows]
        mask = self.mask[chosen]
        padded = np.zeros((*mask.shape, self.values.shape[1]), self.dtype)
        padded[mask] = self._values_of(chosen)
        return padded

    def _values_of(self, rows: Sequence[int]) -> Shaped[np.ndarray, "kept F"]:
        pieces = [self.values[self._starts[row] : self._starts[row + 1]] for row in rows]
        return np.concatenate([self.values[:0], *pieces])

    def repeated(self, rows: Sequence[int]) -> "PackedRows":
        """Returns the given rows, each as often as it is given, packed."""
        return PackedRows(self._values_of(rows), self.mask[np.asarray(rows)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)
