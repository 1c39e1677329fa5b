"""One program over several processes, one a host: joining them, and what the host program must have the same on all.

Every process runs the same commands in the same order on a mesh of all their devices (``jax.distributed``). Whatever
decides what is computed next must be the same everywhere: the process with number 0 says it (``agreed``).
"""

import itertools
import os
import sys
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # Its barrier alone has a time-out to choose.
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

AUTO = "auto"
# A process that is gone is noticed by its connections at once, a machine that is gone after so many seconds.
HEARTBEAT_SECONDS = 30
# Processes leave together, and one may be done long before another.
_LEAVE_SECONDS = 7 * 24 * 3600
_WAITS = itertools.count()


def join(hosts: str) -> None:
    """Makes this process one of several; call it before anything is computed.

    Args:
        hosts: "auto", as a TPU pod, SLURM or Open MPI says; or the address of process 1, which of how many this is:
            "10.0.0.2:1234,1/4".

    Raises:
        ValueError: one line: another text, no cluster that says it, or the others do not come.
    """
    given = {} if hosts == AUTO else _parsed(hosts)
    try:
        jax.distributed.initialize(
            **given, heartbeat_timeout_seconds=HEARTBEAT_SECONDS, shutdown_timeout_seconds=_LEAVE_SECONDS
        )
    # Where nothing is known it is a ValueError, what cannot be reached a RuntimeError; clusters raise what they like.
    except Exception as error:
        if hosts == AUTO and isinstance(error, ValueError):
            raise LanternError(
                "--hosts auto found no TPU pod, SLURM or Open MPI here: give ADDRESS:PORT,i/N"
            ) from None
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LanternError(
            f"--hosts {hosts} joined nobody ({why}): look at the address, and start every process"
        ) from None


def check(hosts: str | None) -> None:
    """Raises ValueError for a text that ``join`` does not take; None is valid."""
    if hosts is not None and hosts != AUTO:
        _parsed(hosts)


def _parsed(hosts: str) -> dict[str, Any]:
    address, _, place = hosts.rpartition(",")
    name, _, port = address.rpartition(":")
    number, _, count = place.partition("/")
    digits = (port, number, count)
    valid = name and all(text.isascii() and text.isdecimal() and len(text) < 8 for text in digits)
    if not valid or not 1 <= int(number) <= int(count):
        wanted = '"auto", or ADDRESS:PORT,i/N such as 10.0.0.2:1234,1/4 for the first of four'
        raise errors.invalid("--hosts", hosts, wanted)
    return {
        "coordinator_address": address, "num_processes": int(count), "process_id": int(number) - 1,
    }  # fmt: skip


def joined() -> bool:
    """Whether this process is one of several; JAX's devices are not looked for."""
    return jax.distributed.is_initialized()


def is_first() -> bool:
    """Whether this process prints and writes: number 0, or the only one."""
    return not joined() or jax.process_index() == 0


def spans(grid: np.ndarray) -> bool:
    """Whether the devices are those of several processes."""
    return len({device.process_index for device in grid.ravel()}) > 1


def fetched(tree: PyTree) -> PyTree:
    """The arrays on the host, whole, also where parts of them lie on other hosts: then all processes must ask."""

    def fetch(leaf):
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(fetch, tree)


def wait() -> None:
    """Returns once all processes are here: what they did before may have taken some much longer than others, and what
    connects them while they compute has little patience."""
    if joined():
        name = f"lantern_jax {next(_WAITS)}"
        distributed.global_state.client.wait_at_barrier(name, timeout_in_ms=1000 * _LEAVE_SECONDS)


def agreed(value: Any) -> np.ndarray:
    """The value that the first process gives, on all; all must ask."""
    return np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def leave(status: int) -> None:
    """Ends this process at once after a failure: waiting for the others, who wait for it, would take minutes."""
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)
