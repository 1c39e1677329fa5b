"""Shards that are there and not whole, as a disk or somebody else left them: they are made again."""

from collections.abc import Callable, Iterable
from pathlib import Path

from lantern_jax.sets.plan import SetPlan, shard_paths
from lantern_jax.sets.reading import is_whole


def discard_damaged(
    directory: Path, plan: SetPlan, shards: Iterable[int], note: Callable[[str], None]
) -> None:
    """Removes the pictures of every shard that is there and not whole: without them it is to be made.

    Only whoever makes these shards may call it: another's may be replaced by a whole one meanwhile.

    Args:
        note: called with a line about each.
    """
    shards = list(shards)
    for shard in sorted(set(shards) - set(plan.missing(directory, shards))):
        if not is_whole(directory, plan, shard):
            note(f"shard {shard} of {directory} is damaged: it is made again")
            shard_paths(directory, shard)[1].unlink(missing_ok=True)
