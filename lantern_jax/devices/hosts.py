"""One program over several processes, one per host: joining them, and agreeing on what must be the same on all.

Every process runs the same commands in the same order on a mesh of all their devices (``jax.distributed``). What
decides which computation comes next must be the same everywhere: process number 0 announces it (``agreed``).
"""

import itertools
import os
import re
import sys
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # No public barrier lets one choose its time-out.
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

AUTO = "auto"
# A dead process is noticed immediately through its connections, a dead machine after this many seconds.
HEARTBEAT_SECONDS = 30
# Processes leave together, and one may be done long before another.
_LEAVE_SECONDS = 7 * 24 * 3600
_WAITS = itertools.count()


def join(hosts: str) -> None:
    """Makes this process one of several; call it before anything is computed.

    Args:
        hosts: "auto", to ask a TPU pod, SLURM or Open MPI; or the address of process 1 and the number of this one
            among all: "10.0.0.2:1234,1/4".

    Raises:
        LanternError: any other text, no cluster to ask, or the other processes do not join.
    """
    given = {} if hosts == AUTO else _parsed(hosts)
    try:
        jax.distributed.initialize(
            **given, heartbeat_timeout_seconds=HEARTBEAT_SECONDS, shutdown_timeout_seconds=_LEAVE_SECONDS
        )
    # A ValueError if nothing is known, a RuntimeError if nothing can be reached; clusters raise what they like.
    except Exception as error:
        if hosts == AUTO and isinstance(error, ValueError):
            raise LanternError(
                "--hosts auto found no TPU pod, SLURM or Open MPI here: give ADDRESS:PORT,i/N"
            ) from None
        why = f"--hosts {hosts} joined no other process ({errors.short(error, 200)})"
        raise LanternError(f"{why}: look at the address, and start every process") from None


def _parsed(hosts: str) -> dict[str, Any]:
    found = re.fullmatch(r"(.+:\d{1,7}),(\d{1,7})/(\d{1,7})", hosts, re.ASCII)
    if not found or not 1 <= int(found[2]) <= int(found[3]):
        wanted = '"auto", or ADDRESS:PORT,i/N such as 10.0.0.2:1234,1/4 for the first of four'
        raise errors.invalid("--hosts", hosts, wanted)
    return {
        "coordinator_address": found[1], "num_processes": int(found[3]), "process_id": int(found[2]) - 1,
    }  # fmt: skip


def joined() -> bool:
    """Tells whether this process is one of several, without looking for JAX's devices."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Tells whether this process prints and writes: number 0, or the only one."""
    return not joined() or jax.process_index() == 0


def fetched(tree: PyTree) -> PyTree:
    """Fetches whole arrays to this host; if parts lie on other hosts, all processes must call it."""

    def fetch(leaf):
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(fetch, tree)


def wait() -> None:
    """Waits for all processes: some may be ready to compute together much later than others, and the connections of a
    computation soon time out.
    """
    if joined():
        name = f"lantern_jax {next(_WAITS)}"
        distributed.global_state.client.wait_at_barrier(name, timeout_in_ms=1000 * _LEAVE_SECONDS)


def agreed(value: Any) -> np.ndarray:
    """Returns the first process's value on all processes; all must call it."""
    return np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def leave(status: int) -> None:
    """Ends this process immediately after a failure: the others wait for it, and it would wait for them for minutes."""
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)
