"""Tokens of pictures that are in no shard yet, kept in a file of their worker: a stop loses only unfinished pictures.

Tokens follow from the plan, so it does not matter which worker decoded them, or when.

Axes: T codes of a picture.
"""

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lantern_jax.apps.sets.plan import Worker
from lantern_jax.io.archives import read_arrays
from lantern_jax.io.files import write_file

# Seconds between two writes of the file.
EVERY = 10.0

Known = tuple[Int[np.ndarray, " T"], Int[np.ndarray, ""]]  # a picture's tokens, and its rounds


def keep(directory: Path, worker: Worker, held: Mapping[int, Known]) -> None:
    """Keeps pictures, by their numbers, in place of those that this worker kept before.

    Raises:
        OSError: one line: they cannot be written.
    """
    path = directory / f".worker-{worker.number}-of-{worker.count}.kept"
    if not held:
        path.unlink(missing_ok=True)
        return
    numbers, known = zip(*sorted(held.items()), strict=True)
    tokens, rounds = (np.stack(leaves).astype(np.int32) for leaves in zip(*known, strict=True))
    arrays = {"numbers": np.array(numbers, np.int32), "tokens": tokens, "rounds": rounds}
    write_file(path, lambda file: np.savez(file, **arrays), synced=True)


def read_kept(directory: Path, wanted: Collection[int], codes: int, size: int) -> dict[int, Known]:
    """Returns the pictures among these that any worker kept, by number; unreadable ones are decoded again.

    Args:
        codes: T.
        size: the number that all codes are smaller than.
    """
    found: dict[int, Known] = {}
    for path in directory.glob(".worker-*-of-*.kept"):
        with contextlib.suppress(ValueError, KeyError, OSError):
            arrays = read_arrays(path)
            numbers, tokens, rounds = (arrays[name] for name in ("numbers", "tokens", "rounds"))
            fits = (
                tokens.shape == (*numbers.shape, codes)
                and rounds.shape == numbers.shape
                and numbers.ndim == 1
            )
            if fits and all(array.dtype == np.int32 for array in (numbers, tokens, rounds)):
                right = ((tokens >= 0) & (tokens < size)).all(axis=1)
                found |= {
                    number: known
                    for number, *known, is_right in zip(numbers.tolist(), tokens, rounds, right, strict=True)
                    if is_right and number in wanted
                }
    return found
