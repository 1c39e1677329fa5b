"""Rotation and attention of a few new positions over several places of keys, as one kernel.

A program takes the queries of one head of one row. It rotates them and the new keys, goes through the past slots
block by block under a running softmax (FlashAttention, arXiv 2205.14135, algorithm 1) as far as any query sees, then
through the new positions themselves.

Axes: R rows (guidance x batch), H heads, N new positions, S slots, E head width.
"""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from lantern_jax.kernels.shapes import LEAST_TILE, compiler_params, flat_rows, in_32_bits, shape_like

# Slots read together: 32 and 128 are slower on an H100.
_SLOTS = 64
_LOWEST = -1e30


@in_32_bits
def attend_kernel(qkv, rotary, block_mask, past, past_masks, interpret: bool = False):
    """Computes ``models.attention.rotate_and_attend`` where Triton serves; ``interpret`` runs it anywhere."""
    *rows, count, _, heads, width = qkv.shape
    flat = partial(flat_rows, tuple(rows))
    places = [
        (*(flat(states, 3) for states in place), flat(mask.astype(jnp.int8), 2), _reach(flat(mask, 2)))
        for place, mask in zip(past, past_masks, strict=True)
        if mask.shape[-1]
    ]
    qkv = qkv.reshape(-1, *qkv.shape[-4:])
    states = shape_like(qkv, (len(qkv), heads, count, width))
    out, keys, values = pl.pallas_call(
        partial(_kernel, max(LEAST_TILE, pl.next_power_of_2(count))),
        out_shape=(shape_like(qkv, (len(qkv), count, heads, width)), states, states),
        grid=(len(qkv), heads),
        compiler_params=compiler_params(num_warps=4, num_stages=3),
        interpret=interpret,
        # The number of places, which differs between target and drafter, tells their kernels apart in a profile.
        name=f"attend_{len(places)}",
    )(
        qkv,
        flat(rotary, 3),
        flat(block_mask.astype(jnp.int8), 2),
        *(array for place in places for array in place),
    )
    out, keys, values = (array.reshape(*rows, *array.shape[1:]) for array in (out, keys, values))
    return out, (keys, values)


def _reach(mask):
    """Counts the slots up to the last one that any query sees, int32 [R]."""
    slots = jnp.arange(1, mask.shape[-1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(mask, slots, 0), axis=(1, 2))


def _kernel(tile: int, qkv_ref, rotary_ref, block_mask_ref, *refs):
    *places, out_ref, keys_ref, values_ref = refs
    row, head = pl.program_id(0), pl.program_id(1)
    count, width = qkv_ref.shape[1], qkv_ref.shape[-1]
    # Tiles are larger than their contents: entries past the end repeat the last one's work.
    node = jnp.minimum(jnp.arange(tile, dtype=jnp.int32), count - 1)
    channel = jnp.arange(width, dtype=jnp.int32)
    here = (row, head, node[:, None], channel[None])
    second = channel >= width // 2
    pair = channel - jnp.where(second, width // 2, 0)
    cos = rotary_ref[row, node[:, None], pair[None], 0]
    sin = rotary_ref[row, node[:, None], pair[None], 1] * jnp.where(second, 1.0, -1.0)[None]

    def rotated(part: int):
        own, other = (
            qkv_ref[row, node[:, None], part, head, channels[None]].astype(jnp.float32)
            for channels in (channel, pair + jnp.where(second, 0, width // 2))
        )
        return (own * cos + other * sin).astype(qkv_ref.dtype)

    queries, keys = rotated(0) * jnp.asarray(width**-0.5, qkv_ref.dtype), rotated(1)
    values = qkv_ref[row, node[:, None], 2, head, channel[None]]
    keys_ref[here], values_ref[here] = keys, values

    carry = (
        jnp.full((tile,), _LOWEST, jnp.float32),
        jnp.zeros((tile,), jnp.float32),
        jnp.zeros((tile, width), jnp.float32),
    )
    for place in zip(*[iter(places)] * 4, strict=True):
        carry = _over_place(row, head, node, channel, queries, place, carry)
    own = jnp.arange(tile, dtype=jnp.int32)
    seen = block_mask_ref[row, node[:, None], node[None]] != 0
    _, total, out = _look(queries, keys, values, seen & (own < count)[None], carry)
    out_ref[row, node[:, None], head, channel[None]] = (out / total[:, None]).astype(out_ref.dtype)


def _over_place(row, head, node, channel, queries, place, carry):
    keys_ref, values_ref, mask_ref, reach_ref = place
    rows, slots = mask_ref.shape[1:]
    block = min(_SLOTS, max(LEAST_TILE, pl.next_power_of_2(slots)))

    def step(i, carry):
        slot = i * block + jnp.arange(block, dtype=jnp.int32)
        there, slot = slot < slots, jnp.minimum(slot, slots - 1)
        seen = mask_ref[row, jnp.minimum(node, rows - 1)[:, None], slot[None]] != 0
        at = (row, head, slot[:, None], channel[None])
        return _look(queries, keys_ref[at], values_ref[at], seen & there[None], carry)

    return lax.fori_loop(0, pl.cdiv(reach_ref[row], block), step, carry)


def _look(queries, keys, values, seen, carry):
    """Adds keys to the running softmax (top [N], total [N], sum [N, E])."""
    top, total, out = carry
    scores = jnp.where(seen, _product(queries, keys.T), _LOWEST)
    new_top = jnp.maximum(top, jnp.max(scores, axis=1))
    shrink, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[:, None])
    total = total * shrink + jnp.sum(weights, axis=1)
    return new_top, total, out * shrink[:, None] + _product(weights.astype(values.dtype), values)


def _product(a, b):
    return jnp.dot(a, b, precision=lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
