"""What all kernels ask of devices and shapes."""

import jax
from jaxtyping import Array

try:
    from jax.experimental.pallas import triton
except ImportError:
    # JAX has announced that it goes. GPUs are then served by XLA alone, as everybody else is.
    triton = None

# Older ones (a T4 or a V100) have no products of bfloat16.
_LEAST_CAPABILITY = 8.0


def is_served() -> bool:
    """Whether Triton serves the GPU at hand; True where there is none, so that programs can be lowered for others."""
    if triton is None:
        return False
    capability = getattr(jax.devices()[0], "compute_capability", None)
    return capability is None or float(capability) >= _LEAST_CAPABILITY


def compiler_params(num_warps: int, num_stages: int):
    """How Triton compiles a kernel; only where it ``is_served``."""
    return triton.CompilerParams(num_warps=num_warps, num_stages=num_stages)


def is_power_of_two(size: int) -> bool:
    """Triton's tiles have no other sizes."""
    return size > 0 and not size & (size - 1)


def shape_like(array: Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """The shape of a result with the array's type, which varies along the ``shard_map`` axes that the array does."""
    varying = getattr(jax.typeof(array), "vma", None)
    return jax.ShapeDtypeStruct(shape, array.dtype, **({"vma": varying} if varying else {}))
