"""Requirements of all kernels on devices and shapes."""

import jax
from jaxtyping import Array

try:
    from jax.experimental.pallas import triton
except ImportError:
    # JAX has announced its removal. XLA alone then serves GPUs, as it does all other devices.
    triton = None

# Older ones (a T4 or a V100) have no products of bfloat16.
_LEAST_CAPABILITY = 8.0


def is_served() -> bool:
    """Tells whether Triton serves the GPU at hand; True without one, so that programs can be lowered for GPUs."""
    if triton is None:
        return False
    capability = getattr(jax.devices()[0], "compute_capability", None)
    return capability is None or float(capability) >= _LEAST_CAPABILITY


def compiler_params(num_warps: int, num_stages: int):
    """Returns Triton's options for a kernel; only where it ``is_served``."""
    return triton.CompilerParams(num_warps=num_warps, num_stages=num_stages)


def is_power_of_two(size: int) -> bool:
    """Tells whether a size is one of Triton's tiles."""
    return size > 0 and not size & (size - 1)


def shape_like(array: Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Returns a result's shape with the array's dtype and the ``shard_map`` axes along which it varies."""
    varying = getattr(jax.typeof(array), "vma", None)
    return jax.ShapeDtypeStruct(shape, array.dtype, **({"vma": varying} if varying else {}))
