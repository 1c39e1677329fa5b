"""Which way attention and the append to caches take on a GPU: one table, by compute capability, dtype and shape.

XLA serves every device. A Triton kernel is taken where it was measured to be quicker, as long as JAX has Triton.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lantern_jax.kernels import shapes

TRITON, JOINED = "triton", "joined"
# Older GPUs (a T4 or a V100) have no products of bfloat16, and Triton does not serve them.
BFLOAT16_CAPABILITY = 8.0

# That of the GPU that programs are traced for; JAX does not share traces between its values.
_capability = jax.make_user_context(None)
# The only platform that programs are traced for, None if they may be lowered for any; likewise.
_platform = jax.make_user_context(None)


@dataclass(frozen=True)
class Way:
    """A way that an operation can take on GPUs, and what it serves.

    Attributes:
        name: "triton", one kernel (``attention``, ``append``), or "joined", few kernels of XLA's (``joined``).
        capability: the least compute capability.
        most_bytes: of an entry; Triton's products of float32 are not in full precision.
        least_width: of heads.
        nodes: most new positions; XLA's matrix products serve larger blocks, such as a prefix.
        is_tiled: whether head widths must be powers of two.
    """

    name: str
    capability: float = 0.0
    most_bytes: int = 8
    least_width: int = 1
    nodes: int = 64
    is_tiled: bool = False

    def serves(self, dtype: Any, width: int, nodes: int = 1) -> bool:
        """Tells whether it serves arrays of this kind on the GPU that is traced for."""
        there = _capability.value or capability_of(jax.devices()[0])
        fits = jnp.dtype(dtype).itemsize <= self.most_bytes and 1 <= nodes <= self.nodes
        fits = fits and width >= self.least_width and not (self.is_tiled and width & (width - 1))
        # If no GPU is at hand or named, programs are lowered for a new one.
        return fits and (there is None or there >= self.capability)


# The first that serves is taken; if none does, a GPU goes the way of CPUs.
ATTENTION = (
    Way(TRITON, BFLOAT16_CAPABILITY, most_bytes=2, least_width=shapes.LEAST_TILE, is_tiled=True),
    Way(JOINED),
)
APPEND = (Way(TRITON, BFLOAT16_CAPABILITY, is_tiled=True),)


def attention_way(qkv: Float[Array, "*rows N parts K E"]) -> str | None:
    """Returns the name of the way that attention takes on the GPU that is traced for; None for that of CPUs, which
    grouped queries, with more than three parts, take too."""
    if qkv.shape[-3] != 3:
        return None
    return _first(ATTENTION, qkv.dtype, qkv.shape[-1], qkv.shape[-4])


def append_way(cache: Float[Array, "*rows H S E"]) -> str | None:
    """Returns the name of the way that appending to caches takes on that GPU; None for that of CPUs."""
    return _first(APPEND, cache.dtype, cache.shape[-1])


def _first(ways: tuple[Way, ...], *arrays: Any) -> str | None:
    there = (way for way in ways if way.name != TRITON or shapes.triton is not None)
    return next((way.name for way in there if way.serves(*arrays)), None)


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
