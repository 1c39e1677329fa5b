"""Reading a complete picture set: its pictures in order, and the sums of all shards' features as one.

Axes: H W height and width, T codes of a picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.apps.metrics.moments import Moments
from lantern_jax.apps.sets.plan import SetPlan, is_set, read_plan, shard_paths
from lantern_jax.apps.sets.shards import damaged, open_pictures, read_arrays, sums_start
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import write_file

__all__ = ["SUMS_FILE", "Merged", "SetPicture", "is_set", "merge", "read_set"]
SUMS_FILE = "moments.npz"


@dataclass(frozen=True)
class SetPicture:
    """A picture of a set, or of other pictures that are measured like one.

    Attributes:
        number: in the set, from 0; None where it carries none.
        prompt: what it was made from; likewise.
        picture: uint8 [H, W, 3].
        tokens: int32 [T], its codes; None for pictures of no set.
    """

    number: int | None
    prompt: str | None
    picture: UInt8[np.ndarray, "H W 3"]
    tokens: Int[np.ndarray, " T"] | None = None


@dataclass(frozen=True)
class Merged:
    """What a complete set holds.

    Attributes:
        pictures, shards: numbers of them.
        rounds: target passes after prefill, of all pictures.
        sums: the moments of all pictures' features; None where none were kept.
    """

    pictures: int
    shards: int
    rounds: int
    sums: Moments | None


def read_set(directory: Path) -> Iterator[SetPicture]:
    """Yields the pictures of a complete set in the order of their numbers; first checks that all shards are there.

    Raises:
        LanternError: no set, one that lacks shards, a damaged shard, or a picture with another prompt or number.
    """
    directory = Path(directory)
    return _pictures(directory, _complete_plan(directory))


def _pictures(directory: Path, plan: SetPlan) -> Iterator[SetPicture]:
    for shard in range(plan.shards):
        tokens = read_arrays(directory, plan, shard)["tokens"]
        for (number, image), row in zip(open_pictures(directory, plan, shard), tokens, strict=True):
            yield SetPicture(number, plan.prompt(number), np.array(image.convert("RGB")), row)


def merge(directory: Path) -> Merged:
    """Checks that every picture of a set is there once, with its prompt and tokens; writes the merged sums.

    Raises:
        LanternError: no set, missing shards, which are named, or a shard that is damaged or of another set.
        OSError: one line: the sums cannot be written.
    """
    directory = Path(directory)
    plan = _complete_plan(directory)
    pictures, rounds, sums = 0, 0, None
    for shard in range(plan.shards):
        arrays = read_arrays(directory, plan, shard)
        pictures += sum(1 for _ in open_pictures(directory, plan, shard))
        rounds += int(arrays["rounds"].sum())
        if plan.sums is not None:
            part = Moments.from_arrays(arrays, sums_start(plan))
            if sums is not None and sums.total.shape != part.total.shape:
                raise damaged(shard_paths(directory, plan, shard)[0])
            sums = part if sums is None else sums + part
    if sums is not None:
        arrays = sums.to_arrays(sums_start(plan))
        write_file(directory / SUMS_FILE, lambda file: np.savez(file, **arrays), synced=True)
    return Merged(pictures, plan.shards, rounds, sums)


def _complete_plan(directory: Path) -> SetPlan:
    """Reads the plan of a set; raises LanternError where shards are missing."""
    plan = read_plan(directory)
    missing = plan.missing(directory)
    if missing:
        rest = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise LanternError(
            f"{directory} lacks {len(missing)} of {plan.shards} shards (number {', '.join(map(str, missing[:8]))}"
            f"{rest}): run its lantern set commands again to make them"
        )
    return plan
