"""Top-k, top-p and min-p by thresholds, found in a fixed number of passes and never by sorting the vocabulary.

Axes: V vocabulary.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.devices.partition import divides, shards, split, varying_like, whole
from lantern_jax.kernels.ways import by_platform

FILTERS = ("top_k", "top_p", "min_p")


def filtered(
    values: Float[Array, "*rows V"],
    filters: tuple[str, ...],
    top_k: Int[Array, ""],
    top_p: Float[Array, ""],
    min_p: Float[Array, ""],
) -> Float[Array, "*rows V"]:
    """Applies top-k, then top-p, then min-p to tempered logits: -inf where a code is removed.

    A threshold takes many passes over a row, and on a model axis each pass would wait for all devices. Where codes are
    split, devices therefore exchange parts so that each holds whole rows, of the same total size, and one number per
    row comes back: the least value that stays.

    Args:
        filters: the ``FILTERS`` to apply; static.
        top_k, top_p, min_p: as in ``SamplingParams``.
    """
    if not filters or not divides(values.shape[-1]):
        return _filtered(values, filters, top_k, top_p, min_p)
    rows = values.reshape(-1, values.shape[-1])
    padded = split(jnp.pad(rows, ((0, -len(rows) % shards()), (0, 0))), -1)
    left = _filtered(split(padded, 0), filters, top_k, top_p, min_p)
    least = whole(jnp.min(left, axis=-1, where=left > -jnp.inf, initial=jnp.inf))
    return _keep(values, least[: len(rows)].reshape(values.shape[:-1]))


def _filtered(values, filters, top_k, top_p, min_p) -> Float[Array, "*rows V"]:
    vocab = values.shape[-1]
    if "top_k" in filters:
        with jax.named_scope("top_k"):
            all_kept = (top_k <= 0) | (top_k > vocab)
            limit = jnp.where(all_kept, jnp.int32(vocab), top_k).astype(jnp.float32)
            values = _keep(values, _threshold(values, jnp.float32(1), limit))
    if "top_p" in filters:
        with jax.named_scope("top_p"):
            limit = jnp.where(top_p < 1, top_p, jnp.float32(np.inf))
            values = _keep(values, _threshold(values, jax.nn.softmax(values, axis=-1), limit))
    if "min_p" in filters:
        # A code's share of the best one's probability does not depend on what the others were renormalized by.
        with jax.named_scope("min_p"):
            values = _keep(values, jnp.max(values, axis=-1) + jnp.log(min_p))
    return values


def _keep(values: Float[Array, "*rows V"], threshold: Float[Array, "*rows"]) -> Float[Array, "*rows V"]:
    return jnp.where(values < threshold[..., None], -jnp.inf, values)


def _threshold(values: Float[Array, "*rows V"], weights: Array, limit: Array) -> Float[Array, "*rows"]:
    """Finds, exactly, the smallest float above which the values together weigh less than ``limit`` (> 0).

    It is -inf where all values weigh less. A CPU is bound by comparisons, and 32 passes of one comparison need the
    fewest; an accelerator is bound by passes, and makes 8 of 15 comparisons, unrolled. The choice is made in lowering:
    XLA's HLO for a platform holds only that platform's passes.
    """
    return by_platform(
        values,
        weights,
        limit,
        cpu=partial(_search, bits=1, unroll=False),
        default=partial(_search, bits=4, unroll=True),
    )


@partial(jax.jit, static_argnames=("bits", "unroll"), inline=True)
def _search(
    values: Float[Array, "*rows V"], weights: Array, limit: Array, *, bits: int, unroll: bool
) -> Float[Array, "*rows"]:
    """Finds the threshold, ``bits`` binary digits per pass, from the first to the last.

    The digits count floats upwards from -inf, through int32 numbers that keep the floats' order. A candidate is not
    above the threshold when the values above its predecessor weigh ``limit`` or more; no value is above candidates past
    infinity, which are NaNs. Weights are float32 even for counting (exact up to 2**24 codes): XLA vectorizes that sum
    better than an integer one.
    """
    digits = np.arange(1, 2**bits, dtype=np.int32).reshape((1,) * (values.ndim - 1) + (-1,))

    def refine(number, lower):
        unit = lax.shift_left(jnp.int32(1), jnp.int32(32 - bits) - jnp.int32(bits) * number)
        predecessor = _from_ordered_int(lower[..., None] + unit * digits - 1)
        weight = jnp.broadcast_to(weights, values.shape)[..., None, :]
        above = jnp.where(values[..., None, :] > predecessor[..., None], weight, jnp.float32(0))
        digit = jnp.sum(jnp.sum(above, axis=-1) >= limit, axis=-1, dtype=jnp.int32)
        return lower + unit * digit

    lowest = jnp.full(values.shape[:-1], _ordered_int(np.float32(-np.inf)), jnp.int32)
    passes = 32 // bits
    return _from_ordered_int(
        lax.fori_loop(0, passes, refine, varying_like(lowest, values), unroll=passes if unroll else 1)
    )


def _ordered_int(values: Float[Array, "*rows"]) -> Int[Array, "*rows"]:
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


def _from_ordered_int(keys: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    return lax.bitcast_convert_type(jnp.where(keys >= 0, keys, keys ^ 0x7FFFFFFF), jnp.float32)
