"""What computes here, and with what software."""

import os
import platform
from importlib import metadata

import jax

from lantern_jax import __version__


def device_name() -> str:
    """The kind of the devices and how many there are, of a CPU its cores too: what speed depends on."""
    devices = jax.local_devices()
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        kind = f"{kind} of {cores} cores"
    return kind if len(devices) == 1 else f"{len(devices)} x {kind}"


def versions() -> dict[str, str]:
    """Of the library, JAX and Python."""
    return {
        "lantern_jax": __version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "python": platform.python_version(),
    }
