"""Which way attention and the append to caches take on a GPU, by compute capability, dtype and shape.

XLA serves every device. A Triton kernel is taken where it was measured to be quicker, as long as JAX has Triton.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from jaxtyping import Array, Float

from lantern_jax.kernels import shapes

TRITON, JOINED = "triton", "joined"
# Older GPUs (a T4 or a V100) have no products of bfloat16, and Triton does not serve them.
BFLOAT16_CAPABILITY = 8.0

# That of the GPU that programs are traced for; JAX does not share traces between its values.
_capability = jax.make_user_context(None)
# The only platform that programs are traced for, None if they may be lowered for any; likewise.
_platform = jax.make_user_context(None)


# Most new positions; XLA's matrix products serve larger blocks, such as a prefix.
_MOST_NODES = 64


def attention_way(qkv: Float[Array, "*rows N parts K E"]) -> str | None:
    """Returns the name of the way that attention takes on the GPU that is traced for: "triton", one kernel
    (``attention``), or "joined", few kernels of XLA's (``joined``); None for that of CPUs, which grouped queries, with
    more than three parts, take too."""
    count, parts, _, width = qkv.shape[-4:]
    if parts != 3 or not 1 <= count <= _MOST_NODES:
        return None
    # Triton's products of float32 are not in full precision.
    fits = qkv.dtype.itemsize <= 2 and width >= shapes.LEAST_TILE
    return TRITON if fits and _triton_serves(width) else JOINED


def append_way(cache: Float[Array, "*rows H S E"]) -> str | None:
    """Returns the name of the way that appending to caches takes on that GPU, "triton" (``append``); None for that of
    CPUs."""
    return TRITON if _triton_serves(cache.shape[-1]) else None


def _triton_serves(width: int) -> bool:
    """Tells whether JAX has Triton, whose tiles have powers of two, and the GPU that is traced for is new enough."""
    there = _capability.value or capability_of(jax.devices()[0])
    # If no GPU is at hand or named, programs are lowered for a new one.
    is_new = there is None or there >= BFLOAT16_CAPABILITY
    return shapes.triton is not None and not width & (width - 1) and is_new


def traced_for(device: Any) -> AbstractContextManager[None]:
    """Returns a context in which programs are traced for a GPU, or a stand-in for one, instead of the one at hand."""
    return _capability(capability_of(device))


def traced_on(platform: str) -> AbstractContextManager[None]:
    """Returns a context in which programs are traced for one platform alone, by JAX's name of it."""
    return _platform(platform)


def by_platform(*arguments: Any, default: Callable, **ways: Callable) -> Any:
    """Returns ``jax.lax.platform_dependent`` of these; tracing for a CPU alone leaves out the other ways, and tracing
    for another platform alone leaves out the CPU's."""
    if _platform.value == "cpu":
        return ways.get("cpu", default)(*arguments)
    if _platform.value is not None:
        ways.pop("cpu", None)
    return jax.lax.platform_dependent(*arguments, default=default, **ways) if ways else default(*arguments)


def capability_of(device: Any) -> float | None:
    """Returns the compute capability of an NVIDIA GPU; None for another device."""
    found = str(getattr(device, "compute_capability", None))
    return float(found) if re.fullmatch(r"\d+\.\d+", found) else None
