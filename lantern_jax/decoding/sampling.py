"""From logits to tokens: guidance, temperature, top-k, top-p and the random streams.

Axes: G guidance rows, B batch, L positions, M tree nodes, V vocabulary.

Every method of the library samples by Gumbel-max: the token at position i of a sequence is the argmax of
``log_probs + gumbel_noise`` with the noise of exactly that sequence and position. Plain decoding, drafting
and verification read the same numbers, which is why strict speculative decoding repeats plain decoding.
"""

import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

# Streams of the rejection coupling. Positions stay below 2**31, so these never meet fold_in(key, position).
_DRAFT_STREAM = 0x80000001
_ACCEPT_STREAM = 0x80000002
_RESIDUAL_STREAM = 0x80000003

_ARGMAX_BLOCK = 128


@flax.struct.dataclass
class SamplingParams:
    """Traced knobs of the sampling distribution, shared by the batch: sweeping them never recompiles.

    Attributes:
        temperature: float32 [], >= 0; 0 is greedy decoding.
        top_k: int32 [], keep the codes no fewer than k others beat (ties at the threshold stay); 0 is off.
        top_p: float32 [], in (0, 1], keep the codes with less than this mass strictly above them, on the
            renormalised top-k; 1 is off.
    """

    temperature: Float[Array, ""]
    top_k: Int[Array, ""]
    top_p: Float[Array, ""]
    greedy: bool = flax.struct.field(pytree_node=False, default=False)
    filters: tuple[str, ...] = flax.struct.field(pytree_node=False, default=())

    @classmethod
    def create(
        cls, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, vocab_size: int | None = None
    ) -> "SamplingParams":
        """Checks Python numbers and makes the record; raises ValueError outside the ranges above."""
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ValueError(
                f"temperature {temperature} is not valid: give a finite number >= 0 (0 is greedy)"
            )
        if top_k < 0 or int(top_k) != top_k:
            raise ValueError(f"top_k {top_k} is not valid: give a whole number >= 0 (0 turns it off)")
        if vocab_size is not None and top_k > vocab_size:
            raise ValueError(f"top_k {top_k} is more than the {vocab_size} codes: give at most {vocab_size}")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p {top_p} is not valid: give a number in (0, 1] (1 turns it off)")
        return cls(
            temperature=jnp.asarray(temperature, jnp.float32),
            top_k=jnp.asarray(int(top_k), jnp.int32),
            top_p=jnp.asarray(top_p, jnp.float32),
            greedy=temperature == 0,
            filters=tuple(n for n, on in (("top_k", top_k > 0), ("top_p", top_p < 1)) if on),
        )


def apply_guidance(logits: Float[Array, "G B *rest"], scale: Float[Array, " B"]) -> Float[Array, "B *rest"]:
    """Classifier-free guidance: ``uncond + scale * (cond - uncond)`` in float32.

    Args:
        logits: row 0 conditional and, when G is 2, row 1 unconditional.
        scale: guidance of each sequence; unused when G is 1.

    Raises:
        ValueError: G is neither 1 nor 2.
    """
    if logits.shape[0] not in (1, 2):
        raise ValueError(f"logits have {logits.shape[0]} guidance rows: give 1, or 2 (conditional first)")
    cond = logits[0].astype(jnp.float32)
    if logits.shape[0] == 1:
        return cond
    uncond = logits[1].astype(jnp.float32)
    scale = scale.astype(jnp.float32).reshape(scale.shape + (1,) * (cond.ndim - 1))
    return uncond + scale * (cond - uncond)


def process_logits(logits: Float[Array, "*rows V"], params: SamplingParams) -> Float[Array, "*rows V"]:
    """Log-probabilities of the sampling distribution: temperature, then top-k, then top-p on what is left.

    At temperature 0 the result is the log-softmax at temperature 1 without top-k and top-p: its argmax is the
    greedy token and relaxed acceptance reads its probabilities. Thresholds are found by bisection, never by
    sorting the vocabulary; switched-off filters are skipped at run time.

    Args:
        logits: guided logits, ids that are not allowed at -inf; at least one finite entry a row.

    Returns:
        float32 log-probabilities, -inf where a code was filtered out.
    """
    if params.greedy:
        return jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    scaled = logits.astype(jnp.float32) / params.temperature
    if "top_k" in params.filters:
        scaled = _keep(scaled, _threshold(scaled, jnp.float32(1), params.top_k.astype(jnp.float32)))
    if "top_p" in params.filters:
        scaled = _keep(scaled, _threshold(scaled, jax.nn.softmax(scaled, axis=-1), params.top_p))
    return jax.nn.log_softmax(scaled, axis=-1)


def _keep(values: Float[Array, "*rows V"], threshold: Float[Array, "*rows"]) -> Float[Array, "*rows V"]:
    return jnp.where(values >= threshold[..., None], values, -jnp.inf)


def _threshold(values: Float[Array, "*rows V"], weights: Array, limit: Array) -> Float[Array, "*rows"]:
    """Smallest float whose strictly larger values weigh less than ``limit`` together (limit > 0).

    Exact: bisects on the int32 image of the floats that preserves their order, so at most 32 passes. Weights are
    float32 even for counting (exact up to 2**24 codes): XLA vectorises that sum better than an integer one.
    """
    lowest = jnp.full(values.shape[:-1], _ordered_int(np.float32(-np.inf)), jnp.int32)

    def unfinished(bracket):
        return jnp.any(bracket[0] < bracket[1])

    def halve(bracket):
        low, high = bracket
        middle = (low & high) + ((low ^ high) >> 1)
        above = values > _from_ordered_int(middle)[..., None]
        enough = jnp.sum(jnp.where(above, weights, jnp.float32(0)), axis=-1) < limit
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    bracket = (varying_like(lowest, values), _ordered_int(jnp.max(values, axis=-1)))
    return _from_ordered_int(lax.while_loop(unfinished, halve, bracket)[1])


def _ordered_int(values: Float[Array, "*rows"]) -> Int[Array, "*rows"]:
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


def _from_ordered_int(keys: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    return lax.bitcast_convert_type(jnp.where(keys >= 0, keys, keys ^ 0x7FFFFFFF), jnp.float32)


def gumbel_noise(
    keys: Key[Array, " B"], positions: Int[Array, "B L"], vocab_size: int
) -> Float[Array, "B L V"]:
    """Shared noise of the given positions."""

    def row(key, position):
        return jax.random.gumbel(jax.random.fold_in(key, position), (vocab_size,), jnp.float32)

    return jax.vmap(jax.vmap(row, in_axes=(None, 0)))(keys, positions)


def sample(
    logits: Float[Array, "B V"], keys: Key[Array, " B"], positions: Int[Array, " B"], params: SamplingParams
) -> Int[Array, " B"]:
    """The tokens of plain decoding at the given positions of the streams; int32."""
    log_probs = process_logits(logits, params)
    noise = None if params.greedy else gumbel_noise(keys, positions[:, None], logits.shape[-1])[:, 0]
    return gumbel_argmax(log_probs, noise)


def gumbel_argmax(
    log_probs: Float[Array, "*rows V"], noise: Float[Array, "*rows V"] | None = None
) -> Int[Array, "*rows"]:
    """The token: argmax of ``log_probs + noise``, ties to the lowest id; int32. No noise is greedy."""
    return first_argmax(log_probs if noise is None else log_probs + noise)


def first_argmax(scores: Float[Array, "*rows V"]) -> Int[Array, "*rows"]:
    """Argmax over the vocabulary, ties to the lowest id; int32.

    A vocabulary of whole blocks is reduced to the blocks' maxima first: XLA vectorises a maximum, not an
    argmax (30 times faster on a CPU at 16384 codes).
    """
    vocab = scores.shape[-1]
    if vocab % _ARGMAX_BLOCK or vocab == _ARGMAX_BLOCK:
        return jnp.argmax(scores, axis=-1).astype(jnp.int32)
    blocks = scores.reshape(*scores.shape[:-1], vocab // _ARGMAX_BLOCK, _ARGMAX_BLOCK)
    best = jnp.argmax(jnp.max(blocks, axis=-1), axis=-1).astype(jnp.int32)
    block = jnp.take_along_axis(blocks, best[..., None, None], axis=-2)[..., 0, :]
    return best * _ARGMAX_BLOCK + jnp.argmax(block, axis=-1).astype(jnp.int32)


def top_children(scores: Float[Array, "B M V"], k: int) -> tuple[Float[Array, "B M k"], Int[Array, "B M k"]]:
    """The ``k`` best codes of every row, best first, ties to the lowest id: (values, int32 ids).

    Raises:
        ValueError: k is not in 1..V.
    """
    if not 1 <= k <= scores.shape[-1]:
        raise ValueError(
            f"cannot take {k} children from {scores.shape[-1]} codes: give 1 to {scores.shape[-1]}"
        )
    values, ids = lax.top_k(scores, k)
    return values, ids.astype(jnp.int32)


def draft_noise(keys, positions, rounds, nodes, vocab_size: int) -> Float[Array, "B M V"]:
    """Noise that drafts the children of ``nodes`` under the rejection coupling."""

    def row(key, node):
        return jax.random.gumbel(jax.random.fold_in(key, node), (vocab_size,), jnp.float32)

    return jax.vmap(jax.vmap(row, in_axes=(None, 0)), in_axes=(0, None))(
        _stream(keys, _DRAFT_STREAM, positions, rounds), jnp.asarray(nodes, jnp.int32)
    )


def acceptance_uniforms(
    keys: Key[Array, " B"], positions: Int[Array, " B"], rounds: Int[Array, " B"], num_nodes: int
) -> Float[Array, "B N"]:
    """Uniform numbers in [0, 1) of the rejection coupling's accept tests, one a tree node."""
    return jax.vmap(lambda key: jax.random.uniform(key, (num_nodes,), jnp.float32))(
        _stream(keys, _ACCEPT_STREAM, positions, rounds)
    )


def residual_noise(
    keys: Key[Array, " B"], positions: Int[Array, " B"], rounds: Int[Array, " B"], vocab_size: int
) -> Float[Array, "B V"]:
    """Gumbel noise of the rejection coupling's draw from the last residual."""
    return jax.vmap(lambda key: jax.random.gumbel(key, (vocab_size,), jnp.float32))(
        _stream(keys, _RESIDUAL_STREAM, positions, rounds)
    )


def _stream(keys, stream: int, positions, rounds):
    def fold(key, position, number):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, stream), position), number)

    return jax.vmap(fold)(keys, positions, rounds)


def varying_like(tree, source: Array):
    """``tree`` with leaves that vary along the ``shard_map`` axes of ``source``, as loop carries must."""
    if jnp.issubdtype(source.dtype, jax.dtypes.prng_key):
        source = jax.random.key_data(source)
    same = source[(0,) * source.ndim].astype(bool)
    return jax.tree.map(lambda leaf: jnp.where(same, leaf, leaf), tree)
