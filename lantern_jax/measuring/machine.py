"""Memory of a row: its peak, and the bytes that a pass must read."""

import math
import sys
from typing import Any

import jax

from lantern_jax.engine.jobs import Job, Run
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.measuring.levels import levels_of
from lantern_jax.measuring.subject import Subject
from lantern_jax.settings.settings import Settings

# Tables of which a pass reads a few rows, and what prefill alone reads.
NOT_READ = ("tokens", "labels", "caption")


def peak_memory() -> int:
    """Returns the most bytes that this process held on the device, or on the host where the device does not tell."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def bytes_a_pass(subject: Subject, settings: Settings, job: Job, run: Run) -> int:
    """Returns the bytes that a pass reads at least on a device: weights and caches of target and drafter, once a run.

    Left out are tables that are looked up by the row, and prefill's own weights.
    """
    total = _size(subject.engine.parameters.target) + _size(run.state.cache.layers)
    if job.drafter is None:
        return total
    # The heads of some drafters all run together.
    runs = 1 if DRAFTERS[job.drafter].one_pass else max(levels_of(settings), 1)
    own = getattr(getattr(run.state.drafting, "committed", None), "drafter", None)
    cache = _size(getattr(getattr(own, "cache", None), "layers", ()))
    return total + runs * (_size(subject.engine.drafter(job.drafter)) + cache)


def _size(tree: Any) -> int:
    """Returns the bytes of arrays on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if not any(getattr(key, "key", None) in NOT_READ for key in path)
    )
