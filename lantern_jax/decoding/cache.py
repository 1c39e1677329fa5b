"""The key-value cache: committed tokens only, each sequence at its own length.

Axes: G guidance rows, B batch, H heads, S slots (prefix first, then tokens), E head width, N block nodes,
L path length, P prefix length.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.concrete import check_ids
from lantern_jax.decoding.record import Record
from lantern_jax.devices.partition import shards, split
from lantern_jax.kernels.append import append_kernel
from lantern_jax.kernels.ways import append_way, by_platform

# Keys and values of one layer's block, each [G, B, H, N, E].
Block = tuple[tuple[Float[Array, "G B H N E"], Float[Array, "G B H N E"]], ...]


class KVCache(Record):
    """Keys and values of everything committed.

    Attributes:
        layers: for each layer its keys and values, separate arrays [G, B, H, S, E]: head-major, so that appending
            rows is an in-place write inside a loop.
        prefix_mask: bool [G, B, P], which prefix slots are in use.
        length: int32 [B], tokens committed after the prefix.
        guidance: float32 [B], the guidance scale of the logits; None where G is 1.
        visible: bool [B, N, S - P], which slots each of N queries may see in one pass; None for all.
    """

    layers: Block
    prefix_mask: Bool[Array, "G B P"]
    length: Int[Array, " B"]
    guidance: Float[Array, " B"] | None
    visible: Bool[Array, "B N slots"] | None = None

    @property
    def mask(self) -> Bool[Array, "G B N S"]:
        """The attention mask of committed slots; N is 1, for all queries, or as in ``visible``."""
        slots = self.layers[0][0].shape[-2] - self.prefix_mask.shape[2]
        return slots_mask(self.prefix_mask, self.length, slots, self.visible)


def slots_mask(
    prefix_mask: Bool[Array, "G B P"],
    length: Int[Array, " B"],
    slots: int,
    visible: Bool[Array, "B N slots"] | None = None,
) -> Bool[Array, "G B N S"]:
    """Tells which of a cache's P + ``slots`` places queries see: the prefix and, if ``visible``, committed ones.

    N is 1, for all queries, or as in ``visible``.
    """
    rows, prefix = prefix_mask.shape[0], prefix_mask.shape[2]
    tokens = (jnp.arange(slots, dtype=jnp.int32)[None] < length[:, None])[:, None]
    if visible is not None:
        tokens = tokens & visible
    before = jnp.broadcast_to(prefix_mask[:, :, None], (rows, *tokens.shape[:2], prefix))
    return jnp.concatenate([before, jnp.broadcast_to(tokens[None], (rows, *tokens.shape))], axis=-1)


def new_cache(
    prefix: Block, prefix_mask: Bool[Array, "G B P"], guidance: Float[Array, " B"] | None, slots: int
) -> KVCache:
    """Makes a cache with the prefix's keys and values and room for ``slots`` tokens."""
    check_ids("slots", slots, None)
    batch = prefix_mask.shape[1]
    padding = [(0, 0)] * 3 + [(0, slots), (0, 0)]
    layers = tuple(
        (split(jnp.pad(keys, padding), 2), split(jnp.pad(values, padding), 2)) for keys, values in prefix
    )
    return KVCache(layers, prefix_mask, jnp.zeros(batch, jnp.int32), guidance)


def commit(cache: KVCache, block: Block, path: Int[Array, "B L"], count: Int[Array, " B"]) -> KVCache:
    """Appends the first ``count`` nodes of each sequence's path; the cache must have L free slots.

    All L rows are written (a fixed shape); those past ``count`` lie beyond the new length, masked, until the next
    round overwrites them.
    """
    start = cache.prefix_mask.shape[-1] + cache.length
    arguments = cache.layers, block, path, start
    ways = {"tpu": partial(_append_to_each, choose=_choose_by_product), "default": _append_to_each}
    if shards() == 1 and append_way(cache.layers[0][0]):
        ways["cuda"] = _append_to_all
    layers = by_platform(*arguments, **ways)
    return cache.replace(layers=layers, length=cache.length + count)


def _choose(rows, path):
    return jnp.take_along_axis(rows, path[None, :, None, :, None], axis=3)


def _choose_by_product(rows, path):
    """Does what ``_choose`` does, for TPUs: gathering costs more there than a product whose sums have one term each."""
    if path.shape[1] == rows.shape[3] == 1:
        return rows  # Elsewhere the compiler must not know: see the round's commit.
    chosen = jax.nn.one_hot(path, rows.shape[3], dtype=rows.dtype)
    return jnp.einsum("bln,gbhne->gbhle", chosen, rows, precision="highest")


def _append_to_each(layers: Block, block: Block, path, start, choose=_choose) -> Block:
    def append(slots, rows):
        return write_rows(slots, choose(rows, path), start)

    return jax.tree.map(append, layers, block)


@jax.custom_jvp
def _append_to_all(layers: Block, block: Block, path, start) -> Block:
    """Does what ``_append_to_each`` does, in one kernel."""
    slots, structure = jax.tree.flatten(layers)
    rows = slots[0].shape[0]

    def flat(arrays):
        return [array.reshape(-1, *array.shape[2:]) for array in arrays]

    path, start = (jnp.tile(array, (rows, *[1] * (array.ndim - 1))) for array in (path, start))
    made = append_kernel(flat(slots), flat(jax.tree.leaves(block)), path, start)
    return structure.unflatten(new.reshape(old.shape) for new, old in zip(made, slots, strict=True))


# Kernels that write in place have no derivative of their own.
_append_to_all.defjvp(lambda primals, tangents: jax.jvp(_append_to_each, primals, tangents))


def write_rows(
    slots: Float[Array, "G B H S E"], rows: Float[Array, "G B H L E"], start: Int[Array, " B"]
) -> Float[Array, "G B H S E"]:
    """Writes L rows into each sequence's slots from its own ``start``, in place where the compiler may."""
    rows = rows.astype(slots.dtype)
    if slots.shape[1] == 1:
        return lax.dynamic_update_slice_in_dim(slots, rows, start[0], axis=3)
    batch, length = rows.shape[1], rows.shape[3]
    where = start[:, None] + jnp.arange(length, dtype=jnp.int32)[None]
    which = jnp.arange(batch, dtype=jnp.int32)[:, None]
    rows = jnp.transpose(rows, (1, 3, 0, 2, 4))
    return slots.at[:, which, :, where].set(rows, mode="promise_in_bounds", unique_indices=True)
