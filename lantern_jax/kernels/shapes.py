"""Triton, where JAX has it, and the shapes of its kernels' tiles and results."""

from collections.abc import Callable
from functools import wraps

import jax
import jax.numpy as jnp
from jaxtyping import Array

try:
    from jax.experimental.pallas import triton
except ImportError:
    # JAX has announced its removal. XLA alone then serves GPUs, as it does all other devices.
    triton = None

# Products of tensor cores have at least 16 rows.
LEAST_TILE = 16


def in_32_bits(kernel: Callable) -> Callable:
    """Makes a function trace its kernel as if ``jax_enable_x64`` were off: 64-bit indices fit no kernel's own."""

    @wraps(kernel)
    def traced(*arguments, **named):
        with jax.enable_x64(False):
            return kernel(*arguments, **named)

    return traced


def compiler_params(num_warps: int, num_stages: int):
    """Returns Triton's options for a kernel; only where JAX has Triton."""
    return triton.CompilerParams(num_warps=num_warps, num_stages=num_stages)


def shape_like(array: Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Returns a result's shape with the array's dtype and the ``shard_map`` axes along which it varies."""
    varying = getattr(jax.typeof(array), "vma", None)
    return jax.ShapeDtypeStruct(shape, array.dtype, **({"vma": varying} if varying else {}))


def flat_rows(rows: tuple[int, ...], array: Array, axes: int) -> Array:
    """Broadcasts all but the last ``axes`` axes of an array to ``rows``, as one axis: [*rows, ...] to [R, ...].

    XLA shares the results for masks between layers.
    """
    own = array.shape[-axes:]
    return jnp.broadcast_to(array, (*rows, *own)).reshape(-1, *own)
