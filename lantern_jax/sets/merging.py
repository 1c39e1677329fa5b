"""Whether all workers' parts of a picture set are there and fit; the sums of their features as one."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file
from lantern_jax.metrics.moments import Moments
from lantern_jax.sets.plan import read_plan, remove_leftovers, shard_paths, synced
from lantern_jax.sets.reading import damaged, missing_shards, open_pictures, read_arrays, unpacked
from lantern_jax.sets.writing import packed

SUMS_FILE = "moments.npz"


@dataclass(frozen=True)
class Merged:
    """What a complete set holds.

    Attributes:
        pictures, shards: how many.
        rounds: target passes after prefill, of all.
        sums: the moments of all pictures' features; None where none were kept.
    """

    pictures: int
    shards: int
    rounds: int
    sums: Moments | None


def merge(directory: Path) -> Merged:
    """Checks that every picture of a set is there once, with its prompt and tokens; writes the merged sums.

    Raises:
        ValueError: no set, shards that are missing, named, or a shard that is damaged or of another set.
        OSError: one line: the sums cannot be written.
    """
    directory = Path(directory)
    plan = read_plan(directory)
    missing = plan.missing(directory)
    if missing:
        raise LanternError(missing_shards(directory, plan, missing))
    pictures, rounds, sums = 0, 0, None
    for shard in range(plan.shards):
        arrays = read_arrays(directory, plan, shard)
        pictures += sum(1 for _ in open_pictures(directory, plan, shard))
        rounds += int(arrays["rounds"].sum())
        if plan.sums is not None:
            part = unpacked(arrays)[plan.sums]
            if sums is not None and sums.total.shape != part.total.shape:
                raise damaged(shard_paths(directory, shard)[0])
            sums = part if sums is None else sums + part
    if sums is not None:
        content = io.BytesIO()
        np.savez(content, **packed(plan.sums, sums))
        write_file(directory / SUMS_FILE, synced(content.getvalue()))
    remove_leftovers(directory)
    return Merged(pictures, plan.shards, rounds, sums)
