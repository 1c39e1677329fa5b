"""Rotation and attention of a few new positions, written so that XLA makes few kernels of it on a GPU.

The scores of all places share one array: XLA has a kernel for the softmax of one array, but none for that of several,
and would copy all keys of a layer to make two products one. Compiled for an H100, a plain step of LlamaGen-XL has 492
kernels and a pass over 18 nodes 648; with the products of ``models.attention`` they have 599 and 790.

Axes: R rows (guidance x batch), H heads, N new positions, S slots, E head width.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# A few positions attend to each other in the kernels that join scores and add results, as long as such sums, products
# and additions without matrix units, are quick: some 2 microseconds.
_MOST_SUMMED = 1 << 22


# Layers of one shape share one trace.
@partial(jax.jit, inline=True)
def attend_joined(qkv, rotary, block_mask, past, past_masks):
    """Computes ``models.attention.rotate_and_attend``."""
    queries, keys, values = (jnp.swapaxes(qkv[..., part, :, :], -2, -3) for part in range(3))
    queries, keys = _rotated(queries, rotary), _rotated(keys, rotary)
    if qkv.shape[-4] > 1:
        # The end of the round commits a path of these. XLA would keep what they are computed from, ten times as large,
        # and compute them again.
        keys, values = jax.lax.optimization_barrier((keys, values))
    scaled = queries * np.asarray(queries.shape[-1] ** -0.5, queries.dtype)
    summed = math.prod(queries.shape) * queries.shape[-2] <= _MOST_SUMMED
    places = [(*states, mask, False) for states, mask in zip(past, past_masks, strict=True)]
    places.append((keys, values, block_mask, summed))
    scores = [
        jnp.where(mask[..., None, :, :], _scores(scaled, states, by_sum), -jnp.inf)
        for states, _, mask, by_sum in places
    ]
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(qkv.dtype)
    parts = jnp.split(weights, np.cumsum([part.shape[-1] for part in scores[:-1]]), axis=-1)
    out = sum(
        _weighted(part, states, by_sum) for part, (_, states, _, by_sum) in zip(parts, places, strict=True)
    )
    return jnp.swapaxes(out, -2, -3).astype(qkv.dtype), (keys, values)


def _scores(queries, keys, by_sum: bool) -> Float[Array, "*rows H N S"]:
    if by_sum:
        return jnp.sum(_wide(queries)[..., :, None, :] * _wide(keys)[..., None, :, :], axis=-1)
    return jnp.einsum("...ne,...se->...ns", queries, keys, preferred_element_type=jnp.float32)


def _weighted(weights, values, by_sum: bool) -> Float[Array, "*rows H N E"]:
    if by_sum:
        return jnp.sum(_wide(weights)[..., None] * _wide(values)[..., None, :, :], axis=-2)
    return jnp.einsum("...ns,...se->...ne", weights, values, preferred_element_type=jnp.float32)


def _wide(states):
    return states.astype(jnp.float32)


def _rotated(
    x: Float[Array, "*rows H N E"], rotary: Float[Array, "*rows N E/2 2"]
) -> Float[Array, "*rows H N E"]:
    """Rotates pairs of halves, swapped by reversing an axis: concatenating them would be one more kernel."""
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, -1)
    cos, sin = (rotary[..., None, :, None, :, part] for part in range(2))
    signs = np.array([-1, 1], np.float32).reshape(*[1] * (sin.ndim - 2), 2, 1)
    turned = halves * cos + halves[..., ::-1, :] * (sin * signs)
    return turned.reshape(x.shape).astype(x.dtype)
