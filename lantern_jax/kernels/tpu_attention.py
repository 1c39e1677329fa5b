"""Rotation and attention of a few new positions over several places of keys, as one kernel for TPUs.

A TPU keeps arrays in tiles of 128 lanes. Heads of 64 leave half of each empty in XLA's products, so here two heads
share a tile: their queries are stacked, each with zeros in the other's lanes, and one product gives the scores of both.
A program takes some heads of one row; nothing as large as the scores leaves the small memory. Wider heads are left to
XLA: it reads weights ahead while it computes, which a kernel keeps it from doing, and was quicker.

Axes: R rows (guidance x batch), H heads, N new positions, S slots, E head width.
"""

import functools
from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from lantern_jax.kernels.shapes import flat_rows, in_32_bits, shape_like

WIDTH = 64
_LANES, _SUBLANES = 128, 16
_SHARING = _LANES // WIDTH
# XLA's matrix products serve larger blocks, such as a prefix.
_MOST_NODES = 64
# Bytes of caches that a program reads together.
_MOST_BYTES = 3 << 20
_LOWEST = -1e30


def fits(qkv: Float[Array, "*rows N parts H E"]) -> bool:
    """Tells whether the kernel takes arrays of this shape and type; grouped queries have more than three parts."""
    count, parts, heads, width = qkv.shape[-4:]
    whole = width == WIDTH and not heads % _SHARING and parts == 3
    return qkv.dtype == jnp.bfloat16 and whole and 1 <= count <= _MOST_NODES


@in_32_bits
def attend_kernel(qkv, rotary, block_mask, past, past_masks, interpret: bool = False):
    """Computes ``models.attention.rotate_and_attend`` for what ``fits`` accepts; ``interpret`` runs it anywhere."""
    *rows, count, _, heads, _ = qkv.shape
    flat = partial(flat_rows, tuple(rows))
    padded = _whole(count, _SUBLANES)
    # Slots along the lanes: the compiler lays out such caches this way, and none of their lanes is empty.
    places = [
        (*(jnp.swapaxes(flat(states, 3), -1, -2) for states in place), flat(mask, 2).astype(jnp.int32))
        for place, mask in zip(past, past_masks, strict=True)
        if mask.shape[-1]
    ]
    slots = [mask.shape[-1] for *_, mask in places]
    group = _heads_together(heads, 4 * WIDTH * sum(slots))
    qkv = qkv.reshape(-1, count, 3 * heads * WIDTH)
    block_mask = jnp.pad(flat(block_mask, 2).astype(jnp.int32), ((0, 0), (0, 0), (0, padded - count)))

    def lanes(part: int):
        return pl.BlockSpec((1, padded, group * WIDTH), lambda row, n: (row, 0, part * (heads // group) + n))

    def whole(array):
        height = 1 if array.shape[1] == 1 < count else padded
        return pl.BlockSpec((1, height, array.shape[2]), lambda row, n: (row, 0, 0))

    def of_heads(*shape: int):
        return pl.BlockSpec((1, group, *shape), lambda row, n: (row, n, 0, 0))

    factors = [_lanes_of(flat(rotary, 3), part) for part in range(2)]
    states = shape_like(qkv, (len(qkv), heads, count, WIDTH))
    out, keys, values = pl.pallas_call(
        partial(_kernel, count),
        out_shape=(shape_like(qkv, (len(qkv), count, heads * WIDTH)), states, states),
        grid=(len(qkv), heads // group),
        in_specs=[
            *(lanes(part) for part in range(3)),
            *(whole(array) for array in (*factors, block_mask)),
            *(
                spec
                for *caches, mask in places
                for spec in (*(of_heads(*cache.shape[2:]) for cache in caches), whole(mask))
            ),
        ],
        out_specs=(lanes(0), of_heads(padded, WIDTH), of_heads(padded, WIDTH)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=_cost(len(qkv), heads // _SHARING, padded, slots),
        interpret=interpret,
        # The places, and the programs per row, tell kernels of different grids apart.
        name=f"attend_{len(places)}_by_{heads // group}",
    )(qkv, qkv, qkv, *factors, block_mask, *(array for place in places for array in place))
    out = out.reshape(*rows, count, heads, WIDTH)
    return out, tuple(array.reshape(*rows, *array.shape[1:]) for array in (keys, values))


def _whole(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _heads_together(heads: int, size: int) -> int:
    """Returns how many heads a program takes, when the caches of one have ``size`` bytes."""
    fitting = [n for n in range(_SHARING, heads + 1, _SHARING) if not heads % n and n * size <= _MOST_BYTES]
    return max(fitting, default=_SHARING)


def _cost(rows: int, tiles: int, padded: int, slots: list[int]) -> pl.CostEstimate:
    """Counts what all programs do, with arrays padded to whole tiles: caches and new states read and written, two
    products, an exponential per score."""
    seen = sum(_whole(count, _LANES) for count in slots)
    queries = _SHARING * padded
    scores = rows * tiles * queries * (seen + _LANES)
    moved = 2 * _LANES * rows * tiles * (2 * seen + 4 * padded + 2 * queries)
    return pl.CostEstimate(flops=4 * _LANES * scores, transcendentals=scores, bytes_accessed=moved)


def _lanes_of(rotary, part: int):
    """Returns the cosines (0) or sines (1) by which a tile's lanes are multiplied [R, N, 128]."""
    factors = rotary[..., part]
    return jnp.tile(jnp.concatenate([-factors if part else factors, factors], axis=-1), (1, 1, _SHARING))


def _kernel(count: int, *refs):
    q_ref, k_ref, v_ref, cos_ref, sin_ref, block_mask_ref, *places, out_ref, keys_ref, values_ref = refs
    padded = q_ref.shape[1]
    lane = lax.broadcasted_iota(jnp.int32, (padded, _LANES), 1)
    in_first_half = lane & (WIDTH - 1) < WIDTH // 2
    is_of = [lane & -WIDTH == head * WIDTH for head in range(_SHARING)]
    is_node = lax.broadcasted_iota(jnp.int32, (padded, _LANES), 0) < count
    block_mask = jnp.where(lax.broadcasted_iota(jnp.int32, (padded, padded), 1) < count, block_mask_ref[0], 0)
    cos, sin = cos_ref[0], sin_ref[0]

    def rotated(x):
        x = x.astype(jnp.float32)
        forth, back = pltpu.roll(x, WIDTH // 2, 1), pltpu.roll(x, _LANES - WIDTH // 2, 1)
        return (x * cos + jnp.where(in_first_half, back, forth) * sin).astype(q_ref.dtype)

    def of_tile(number, _):
        """Attends with the heads of one tile."""
        lanes = pl.ds(pl.multiple_of(number * _LANES, _LANES), _LANES)
        heads = pl.ds(number * _SHARING, _SHARING)
        query = rotated(q_ref[0, :, lanes]) * jnp.asarray(WIDTH**-0.5, q_ref.dtype)
        nothing = jnp.zeros_like(query)
        queries = jnp.concatenate([jnp.where(mine, query, nothing) for mine in is_of], axis=0)
        # Past the last position lies anything, and zero times that may be NaN.
        keys, values = (
            jnp.where(is_node, array, nothing) for array in (rotated(k_ref[0, :, lanes]), v_ref[0, :, lanes])
        )
        # Keys, values, mask, and the axes of the slots and of the lanes.
        sides = [(keys, values, block_mask, 0, 1)]
        for *caches, mask in zip(*[iter(places)] * 3, strict=True):
            sides.append((*(cache[0, heads].reshape(_LANES, -1) for cache in caches), mask[0], 1, 0))
        out = _softmax_of(queries, sides)
        mine = out[:padded]
        for head in range(1, _SHARING):
            mine = jnp.where(is_of[head], out[head * padded : (head + 1) * padded], mine)
        out_ref[0, :, lanes] = mine.astype(out_ref.dtype)
        for head in range(_SHARING):
            for ref, array in ((keys_ref, keys), (values_ref, values)):
                ref[0, number * _SHARING + head] = array[:, head * WIDTH : (head + 1) * WIDTH]

    lax.fori_loop(0, q_ref.shape[2] // _LANES, of_tile, None)


def _softmax_of(queries, sides):
    """Attends to all sides under one softmax."""
    scores = [
        jnp.where(_for_each(mask) != 0, _product(queries, keys, lanes), _LOWEST)
        for keys, _, mask, _, lanes in sides
    ]
    top = functools.reduce(jnp.maximum, [jnp.max(each, axis=1, keepdims=True) for each in scores])
    weights = [jnp.exp(each - top) for each in scores]
    out = sum(
        _product(each.astype(values.dtype), values, slots)
        for each, (_, values, _, slots, _) in zip(weights, sides, strict=True)
    )
    return out / sum(jnp.sum(each, axis=1, keepdims=True) for each in weights)


def _for_each(mask):
    """Repeats the rows of a mask for each head of a tile, unless one row stands for all."""
    return mask if mask.shape[0] == 1 else jnp.concatenate([mask] * _SHARING, axis=0)


def _product(a, b, axis: int):
    dims = (((1,), (axis,)), ((), ()))
    return lax.dot_general(a, b, dims, precision=lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
