"""Pictures of unfinished shards: their tokens in a file of their worker, so that a stop loses only what is in progress.

Tokens follow from the plan, so it does not matter which worker decoded them, or when.

Axes: T codes of a picture.
"""

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lantern_jax.apps.sets.set_plan import Part
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_arrays, write_file

# Seconds between two writes of the file.
EVERY = 10.0

Known = tuple[Int[np.ndarray, " T"], Int[np.ndarray, ""]]  # a picture's tokens, and its rounds


def keep(directory: Path, part: Part, known: Mapping[int, Known]) -> None:
    """Keeps pictures, by their numbers, in place of those that this worker kept before.

    Raises:
        OSError: one line: they cannot be written.
    """
    path = directory / f".worker-{part.number}-of-{part.count}.kept"
    if not known:
        path.unlink(missing_ok=True)
        return
    tokens, rounds = (np.stack(leaves).astype(np.int32) for leaves in zip(*known.values(), strict=True))
    arrays = {"numbers": np.array(list(known), np.int32), "tokens": tokens, "rounds": rounds}
    write_file(path, lambda file: np.savez(file, **arrays), synced=True)


def read_kept(directory: Path, wanted: Collection[int]) -> dict[int, Known]:
    """Returns the pictures among these that any worker kept, by number; those of a damaged file are decoded again."""
    found: dict[int, Known] = {}
    for path in directory.glob(".worker-*-of-*.kept"):
        with contextlib.suppress(LanternError, KeyError):
            arrays = read_arrays(path)
            rows = zip(arrays["numbers"].tolist(), arrays["tokens"], arrays["rounds"], strict=True)
            found |= {number: (tokens, rounds) for number, tokens, rounds in rows if number in wanted}
    return found
