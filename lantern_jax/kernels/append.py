"""Appending rows to the caches of all layers in place by one kernel.

XLA writes every array with its own kernel, two per layer, each of which moves a few kilobytes.

Axes: R rows (guidance x batch), H heads, S slots, N nodes, L path length, E head width.
"""

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from lantern_jax.kernels.shapes import compiler_params, in_32_bits, shape_like

# A kernel's arguments take at most 4 KiB: for each array the old, the new and the rows, 8 bytes each.
_MOST_ARRAYS = 150
_WARPS, _LANES = 4, 32
# Entries that a thread moves together; registers are few.
_MOST_ENTRIES = 128


@in_32_bits
def append_kernel(
    caches: Sequence[Float[Array, "R H S E"]],
    blocks: Sequence[Float[Array, "R H N E"]],
    path: Int[Array, "R L"],
    start: Int[Array, " R"],
    interpret: bool = False,
) -> list[Float[Array, "R H S E"]]:
    """Writes the nodes of a path into the caches' slots from ``start`` on; ``interpret`` runs it anywhere."""
    made: list[Float[Array, "R H S E"]] = []
    for first in range(0, len(caches), _MOST_ARRAYS):
        some = slice(first, first + _MOST_ARRAYS)
        made += _append(caches[some], blocks[some], path, start, interpret)
    return made


def _append(caches, blocks, path, start, interpret):
    (rows, heads), count = caches[0].shape[:2], len(caches)
    return pl.pallas_call(
        partial(_kernel, count),
        out_shape=[shape_like(cache, cache.shape) for cache in caches],
        grid=(rows, heads),
        input_output_aliases={i: i for i in range(count)},
        compiler_params=compiler_params(num_warps=_WARPS, num_stages=1),
        interpret=interpret,
        name="append",
    )(*caches, *blocks, path, start)


def _kernel(count: int, *refs):
    """Runs one program: one head of one row, in all arrays."""
    block_refs, cache_refs = refs[count : 2 * count], refs[2 * count + 2 :]
    path_ref, start_ref = refs[2 * count : 2 * count + 2]
    row, head = pl.program_id(0), pl.program_id(1)
    length, width = path_ref.shape[1], block_refs[0].shape[-1]
    tile = pl.next_power_of_2(length)
    # Tiles are larger than their contents: entries past the end repeat the last one's work.
    place = jnp.minimum(jnp.arange(tile, dtype=jnp.int32), length - 1)
    node, slot = path_ref[row, place], start_ref[row] + place
    channel = jnp.arange(width, dtype=jnp.int32)[None]
    # A read after a write would wait for it, so reads come first.
    together = max(1, _MOST_ENTRIES * _WARPS * _LANES // (tile * width))
    for first in range(0, count, together):
        moved = [ref[row, head, node[:, None], channel] for ref in block_refs[first : first + together]]
        for ref, rows in zip(cache_refs[first : first + together], moved, strict=True):
            ref[row, head, slot[:, None], channel] = rows.astype(ref.dtype)
