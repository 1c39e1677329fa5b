"""The devices that compute here, and the versions of the software."""

import contextlib
import hashlib
import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax import __version__
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.kernels.ways import BFLOAT16_CAPABILITY, capability_of

# Of the parameters in checkpoints.
DTYPES = ("float16", "bfloat16", "float32")


def check_platform() -> None:
    """Looks for devices; raises LanternError if JAX is asked for a platform that it does not have here."""
    try:
        jax.devices()
    # JAX asserts that the extra of a platform is installed.
    except (RuntimeError, AssertionError) as error:
        asked, why = jax.config.jax_platforms, errors.short(str(error).partition("': ")[2] or "not installed")
        raise LanternError(
            f"JAX is asked for {errors.quoted(asked)}, which is not here ({why}): name another platform in "
            "JAX_PLATFORMS, or nothing"
        ) from None


def check_dtype(dtype: Any) -> None:
    """Raises LanternError unless parameters can be stored in this dtype."""
    if not any(jnp.dtype(name) == dtype for name in DTYPES):
        raise errors.invalid("dtype", dtype, f"one of {', '.join(DTYPES)}")


def parameter_dtype(dtype: Any, device: Any = None) -> np.dtype:
    """Returns the dtype of parameters that ``load`` takes for ``dtype``, on a device or else the first one here.

    Raises:
        LanternError: it is neither None nor a dtype that checkpoints are stored in.
    """
    if dtype is None:
        return default_dtype(device)
    check_dtype(dtype)
    return jnp.dtype(dtype)


def default_dtype(device: Any = None) -> np.dtype:
    """Returns the default dtype of parameters and matrix products, on a device or else the first one here.

    It is bfloat16 on accelerators that multiply it; float32 on CPUs and older GPUs (a T4 or a V100). Those multiply
    float16, but that ends at 65504, and no model here is known to stay below.
    """
    device = jax.devices()[0] if device is None else device
    capability = capability_of(device)
    is_old = capability is not None and capability < BFLOAT16_CAPABILITY
    return jnp.dtype(jnp.float32 if device.platform == "cpu" or is_old else jnp.bfloat16)


def device_name(grid: np.ndarray | None = None) -> str:
    """Names what speed depends on: the kind and number of the devices, and the cores of a CPU.

    Args:
        grid: the devices [data, model] of an engine; None for all of this process, each with a whole model.
    """
    grid = np.array(jax.local_devices())[:, None] if grid is None else grid
    devices, model = grid.ravel(), grid.shape[1]
    kind = devices[0].device_kind
    if devices[0].platform == "cpu":
        kind = f"{kind} of {core_count()} cores"
    name = kind if len(devices) == 1 else f"{len(devices)} x {kind}"
    return name if model == 1 else f"{name}, a model over {model}"


def core_count() -> int:
    """Returns the number of cores that this process may use, perhaps fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def versions() -> dict[str, str]:
    """Returns the versions of the library, JAX and Python."""
    return {
        "lantern_jax": __version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "python": platform.python_version(),
    }


def environment(device: Any = None) -> tuple:
    """Returns what decides a compiled program beside what it is made from: source, versions, flags, configuration.

    Args:
        device: the device that it is for; None for what runs nowhere.
    """
    kind = device and (str(device), device.device_kind, device.client.platform_version, _processor())
    flags = sorted(item for item in os.environ.items() if item[0].startswith(("XLA_", "LIBTPU_")))
    configured = sorted(
        (name, repr(value)) for name, value in jax.config.values.items() if "cache" not in name
    )
    return kind, _source(), versions(), metadata.version("flax"), flags, configured


@cache
def _source() -> str:
    """Returns a digest of this package's source."""
    source = map(Path.read_bytes, sorted(Path(__file__).parents[1].rglob("*.py")))
    return hashlib.sha256(b"".join(source)).hexdigest()


@cache
def _processor() -> str:
    """Returns what this machine's processor can do, if the system tells: machines may share home directories."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return ""
