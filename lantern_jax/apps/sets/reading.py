"""Reading a complete picture set, its pictures in order.

Axes: H W height and width, T codes of a picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.apps.sets.set_plan import SetPlan, is_set, read_plan
from lantern_jax.apps.sets.shards import open_pictures, read_shard_arrays
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

__all__ = ["SetPicture", "is_set", "read_set"]


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


def read_set(directory: Path) -> Iterator[SetPicture]:
    """Yields the pictures of a complete set in the order of their numbers; first checks that all shards are there.

    Raises:
        LanternError: no set, one that lacks shards, a damaged shard, or a picture with another prompt or number.
    """
    plan = read_plan(directory)
    if missing := plan.missing(Path(directory)):
        raise LanternError(
            f"{directory} lacks {len(missing)} of {plan.shards} shards (number {errors.listed(missing, 8)}): "
            "run its lantern set commands again to make them"
        )
    return _pictures(Path(directory), plan)


def _pictures(directory: Path, plan: SetPlan) -> Iterator[SetPicture]:
    for shard in range(plan.shards):
        tokens = read_shard_arrays(directory, plan, shard)["tokens"]
        for (number, image), row in zip(open_pictures(directory, plan, shard), tokens, strict=True):
            yield SetPicture(number, plan.prompt(number), np.array(image.convert("RGB")), row)
