"""Opens the compiler for absent devices, and returns stand-ins for them."""

import os
from importlib import metadata
from importlib.util import find_spec

import jax
import numpy as np
from jax.experimental import topologies

from eval.ahead.sheets import SHEETS, target_config
from eval.ahead.slices import Slice
from lantern_jax.apps.measuring.data_sheets import GPU
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError, MissingExtra

# Without these, libtpu looks for the machine's TPUs, asks Google's servers about them, warns that there are none, and
# lets in only one process at a time.
_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_HOST_BOUNDS": "1,1,1",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}
_GPU_EXTRA, _TPU_EXTRA = 'pip install "jax[cuda13]"', 'pip install "jax[tpu]"'


def check_compiler(slice_: Slice) -> None:
    """Raises MissingExtra unless the compiler of a slice's devices is installed."""
    name = slice_.device.name
    if slice_.device.platform == GPU:
        if not _cuda_plugin():
            raise MissingExtra(f"compiling for {name} needs JAX's CUDA plugin: {_GPU_EXTRA}")
    elif find_spec("libtpu") is None:
        raise MissingExtra(f"compiling for {name} needs libtpu: {_TPU_EXTRA}")


def devices_of(slice_: Slice) -> np.ndarray:
    """Returns stand-ins for a slice's devices by its mesh, [data, model]; programs can be compiled for them.

    Call it before JAX looks for devices: from then on this process has only its CPU.

    Raises:
        MissingExtra: as ``check_compiler``.
        LanternError: a slice that the compiler does not know.
    """
    check_compiler(slice_)
    jax.config.update("jax_platforms", "cpu")
    device = slice_.device
    try:
        if device.platform == GPU:
            shape = "x".join(["1", "1", *slice_.shape.split("x")][-3:])
            found = topologies.get_topology_desc(
                device.name, platform="cuda", topology=shape, target_config=target_config(device)
            )
        else:
            os.environ.update(_LIBTPU)
            options = {"chips_per_host_bounds": (1, 1, 1)} if slice_.is_one else {}
            found = topologies.get_topology_desc(
                f"{device.name}:{slice_.shape}", platform="tpu", **SHEETS[device.name].options, **options
            )
    except (RuntimeError, ValueError) as error:
        raise LanternError(
            f"the compiler does not know {slice_.name} ({errors.short(error)}): give another slice of {device.name}"
        ) from error
    used = slice_.data * slice_.model
    return np.array(found.devices[:used]).reshape(slice_.data, slice_.model)


def _cuda_plugin() -> bool:
    """Tells whether JAX has a plugin for CUDA."""
    names = {entry.name for entry in metadata.entry_points(group="jax_plugins")}
    return any("cuda" in name for name in names)
