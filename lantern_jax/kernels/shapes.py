"""Shapes of what kernels make."""

import jax
from jaxtyping import Array


def shape_like(array: Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """The shape of a result with the array's type, which varies along the ``shard_map`` axes that the array does."""
    varying = getattr(jax.typeof(array), "vma", None)
    return jax.ShapeDtypeStruct(shape, array.dtype, **({"vma": varying} if varying else {}))
