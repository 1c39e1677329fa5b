"""Nearest neighbours in a codebook, computed once when a checkpoint is converted or trained.

Axes: V codes, C channels, K neighbours.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.concrete import at_hand
from lantern_jax.io.errors import LanternError

_BLOCK_ELEMENTS = 1 << 19


def nearest_codes(codebook: Float[Array, "V C"], k: int, normalize: bool = False) -> Int[Array, "V {k}"]:
    """Returns the ``k`` codes nearest to every code, nearest first: int32 [V, k].

    Distances are Euclidean, the code itself is left out, and ties go to the lowest id. Works in blocks, never with a
    V x V array. Differences are squared and summed directly: |a|^2 - 2ab + |b|^2 would lose the order of near
    neighbours in float32.

    Args:
        codebook: the codes as the decoder sees them.
        k: the number of neighbours, 0 <= k < V.
        normalize: scale every code to length 1 first (as LlamaGen's decoder does).

    Raises:
        LanternError: k is outside its range, or the codebook is not a matrix of numbers.

    Example:
        >>> lantern_jax.nearest_codes(jnp.array([[0.0], [1.0], [3.0]]), 2).tolist()
        [[1, 2], [0, 2], [1, 0]]
    """
    if codebook.ndim != 2:
        raise LanternError(f"the codebook has shape {tuple(codebook.shape)}: give codes x channels")
    size = codebook.shape[0]
    if not 0 <= k < size:
        raise LanternError(f"k = {k} neighbours do not exist among {size} codes: give 0 <= k < {size}")
    codes = jnp.asarray(codebook, jnp.float32)
    known = at_hand(codes)
    if known is not None and not np.isfinite(known).all():
        raise LanternError("the codebook holds values that are not finite: give numbers that have neighbours")
    if normalize:
        codes = codes / jnp.maximum(jnp.linalg.norm(codes, axis=-1, keepdims=True), 1e-12)
    if k == 0:
        return jnp.zeros((size, 0), jnp.int32)
    return _nearest(codes, k)


@partial(jax.jit, static_argnames="k")
def _nearest(codes: Float[Array, "V C"], k: int) -> Int[Array, "V {k}"]:
    size, channels = codes.shape
    block = max(1, min(size, _BLOCK_ELEMENTS // size))
    columns = codes.T

    def rows_of(start):
        ids = jnp.minimum(start + jnp.arange(block, dtype=jnp.int32), size - 1)
        rows = codes[ids]

        def add_channel(channel, total):
            difference = rows[:, channel][:, None] - columns[channel][None, :]
            return total + difference * difference

        squared = lax.fori_loop(0, channels, add_channel, jnp.zeros((block, size), jnp.float32))
        itself = ids[:, None] == jnp.arange(size, dtype=jnp.int32)[None, :]
        return lax.top_k(-jnp.where(itself, jnp.inf, squared), k)[1].astype(jnp.int32)

    starts = jnp.arange(0, size, block, dtype=jnp.int32)
    return lax.map(rows_of, starts).reshape(-1, k)[:size]
