"""Rotation and attention over several places of keys under one softmax: by products, or by a kernel where one fits.

Axes: ... leading rows, N new positions, S slots, H heads, K key-value heads, Q queries of a group
(H / K), E head width.
"""

import functools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lantern_jax.devices.partition import shards, split
from lantern_jax.kernels.attention import attend_kernel
from lantern_jax.kernels.joined import attend_joined
from lantern_jax.kernels.ways import attention_way, by_platform

# Keys and values of one layer, each [..., K, S, E], with the mask of queries that see them.
Place = tuple[Float[Array, "*rows K S E"], Float[Array, "*rows K S E"], Bool[Array, "*rows N S"]]

# Products of fewer rows or columns are compiled for TPUs as sums over the whole cache, not as matrix products.
_TPU_ROWS = 8


def rotate(
    x: Float[Array, "*rows H N E"], rotary: Float[Array, "*rows N E/2 2"]
) -> Float[Array, "*rows H N E"]:
    """Rotates the pairs (e, e + E/2) of each head. Converters bring interleaved checkpoints into this layout."""
    cos, sin = rotary[..., None, :, :, 0], rotary[..., None, :, :, 1]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def rotate_by_product(
    x: Float[Array, "*rows H N E"], rotary: Float[Array, "*rows N E/2 2"]
) -> Float[Array, "*rows H N E"]:
    """Computes ``rotate`` with the halves swapped by a product with a permutation matrix: every sum has one term."""
    half = x.shape[-1] // 2
    swap = np.roll(np.eye(x.shape[-1], dtype=np.float32), half, axis=1)
    swap = jnp.asarray(swap, x.dtype)
    swapped = jnp.dot(x, swap, precision="highest", preferred_element_type=jnp.float32)
    cos, sin = rotary[..., None, :, :, 0], rotary[..., None, :, :, 1]
    cos, sin = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
    return (x.astype(jnp.float32) * cos + swapped * sin).astype(x.dtype)


def rotate_and_attend(
    qkv: Float[Array, "*rows N Q+2 K E"],
    rotary: Float[Array, "*rows N E/2 2"],
    block_mask: Bool[Array, "*rows N N"],
    past: tuple[tuple[Array, Array], ...],
    past_masks: tuple[Bool[Array, "*rows N S"], ...],
) -> tuple[Float[Array, "*rows N H E"], tuple[Array, Array]]:
    """Attends from the block's positions to the past and to each other.

    Args:
        qkv: each group's queries, then its keys and its values, not yet rotated; the others as in ``Transformer``.

    Returns:
        the attention's output, and the block's rotated keys and its values, each [..., K, N, E].
    """
    arguments = qkv, rotary, block_mask, tuple(past), tuple(past_masks)
    ways = {"tpu": _by_tall_products, "default": _by_products}
    if shards() == 1:
        way = attention_way(qkv)
        ways |= {"cuda": {"triton": _by_kernel, "joined": attend_joined}[way]} if way else {}
    return by_platform(*arguments, **ways)


# Layers of one shape share one trace.
@partial(jax.jit, inline=True, static_argnames=("rotate", "total", "least"))
def _by_products(qkv, rotary, block_mask, past, past_masks, rotate=rotate, total=None, least=1):
    count, groups = qkv.shape[-4], qkv.shape[-3] - 2
    parts = [jnp.swapaxes(qkv[..., i, :, :], -2, -3) for i in range(groups + 2)]
    # A group's queries are treated as additional rows that see the same keys.
    queries, keys, values = _beside(parts[:groups], -2), *parts[groups:]
    queries, keys = rotate(queries, _beside([rotary] * groups, -3)), rotate(keys, rotary)
    queries, keys, values = (split(states, -3) for states in (queries, keys, values))
    places = [(*keys_values, mask) for keys_values, mask in zip(past, past_masks, strict=True)]
    places = [(*states, _of_groups(mask, groups)) for *states, mask in (*places, (keys, values, block_mask))]
    places = [(*states, _taller(mask, least)) for *states, mask in places]
    attended = attend(_taller(queries, least), *places, total=total or total_by_sums)
    attended = attended[..., : groups * count, :]
    if groups == 1:
        return jnp.swapaxes(attended, -2, -3), (keys, values)
    attended = jnp.moveaxis(attended.reshape(*attended.shape[:-2], groups, count, -1), -2, -4)
    return attended.reshape(*attended.shape[:-3], -1, attended.shape[-1]), (keys, values)


def _beside(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def _of_groups(mask: Bool[Array, "*rows N S"], groups: int) -> Bool[Array, "*rows rows_of_groups S"]:
    """Repeats a mask for every query of a group, unless one row stands for all."""
    return mask if mask.shape[-2] == 1 else _beside([mask] * groups, -2)


def _by_tall_products(*arguments):
    """Computes ``_by_products`` for TPUs, whose compiler makes matrix products only of eight rows or more, and where
    moving each half of a rotation costs as much as a product, and a sum along the last axis as much as several."""
    return _by_products(*arguments, rotate=rotate_by_product, total=total_by_product, least=_TPU_ROWS)


def _taller(rows, least: int):
    """Repeats the last row until there are ``least``, unless one row stands for all (in a mask)."""
    count = rows.shape[-2]
    if count == 0 or count >= least or (rows.dtype == bool and count == 1):
        return rows
    last = jnp.broadcast_to(rows[..., -1:, :], (*rows.shape[:-2], least - count, rows.shape[-1]))
    return jnp.concatenate([rows, last], axis=-2)


@jax.custom_jvp
def _by_kernel(*arguments):
    return attend_kernel(*arguments)


_by_kernel.defjvp(lambda primals, tangents: jax.jvp(_by_products, primals, tangents))


def total_by_sums(weights: Float[Array, "*rows H N S"], place: Place) -> Float[Array, "*rows H N 1"]:
    """Adds up the weights that each query gives to a place's keys."""
    return jnp.sum(weights, axis=-1, keepdims=True)


def total_by_product(weights: Float[Array, "*rows H N S"], place: Place) -> Float[Array, "*rows H N 1"]:
    """Computes ``total_by_sums`` by a product, from weights in the precision in which they multiply the values.

    The columns mark the keys that any query sees: the rest weigh nothing. Columns of ones, or a single column, would
    be compiled as sums.
    """
    _, values, mask = place
    seen = jnp.any(mask, axis=-2)[..., None, :, None].astype(values.dtype)
    seen = jnp.broadcast_to(seen, (*values.shape[:-1], _TPU_ROWS))
    sums = jnp.einsum(
        "...ns,...se->...ne", weights.astype(values.dtype), seen, preferred_element_type=jnp.float32
    )
    return sums[..., :1]


def attend(
    queries: Float[Array, "*rows H N E"], *places: Place, total: Callable = total_by_sums
) -> Float[Array, "*rows H N E"]:
    """Attends to several places of keys under one float32 softmax.

    Args:
        queries: rotated queries.
        places: (keys [..., H, S, E], values [..., H, S, E], mask bool [..., N, S], True where a key is seen).
            Every query must see a key somewhere; a place may be empty (S = 0).
        total: adds up the weights of a place.
    """
    queries = queries * np.asarray(queries.shape[-1] ** -0.5, queries.dtype)
    scores = [
        jnp.where(
            mask[..., None, :, :],
            jnp.einsum("...ne,...se->...ns", queries, keys, preferred_element_type=jnp.float32),
            -jnp.inf,
        )
        for keys, _, mask in places
    ]
    tops = [jnp.max(part, axis=-1, keepdims=True, initial=-jnp.inf) for part in scores]
    top = functools.reduce(jnp.maximum, tops)
    weights = [jnp.exp(part - top) for part in scores]
    whole_weight = sum(total(part, place) for part, place in zip(weights, places, strict=True))
    out = sum(
        jnp.einsum(
            "...ns,...se->...ne", part.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        for part, (_, values, _) in zip(weights, places, strict=True)
    )
    return (out / whole_weight).astype(queries.dtype)
