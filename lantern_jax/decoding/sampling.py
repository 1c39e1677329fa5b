"""From logits to tokens: guidance, temperature, top-k, top-p, min-p and the random streams.

Axes: G guidance rows, B batch, L positions, M tree nodes, V vocabulary.

All sampling is by Gumbel-max: the token at position i of a sequence is the argmax of the *perturbed log-probabilities*
``log_probs + gumbel_noise``, with the noise of exactly that sequence and position. Plain decoding, drafting and
verification read the same numbers, so strict speculative decoding reproduces plain decoding wherever the
log-probabilities are the same. Nothing here branches or loops on data: on a GPU the host would have to read every
predicate.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from lantern_jax.decoding.fields import MIN_P, TEMPERATURE, TOP_K, TOP_P
from lantern_jax.decoding.filters import FILTERS, filtered
from lantern_jax.decoding.record import Record
from lantern_jax.devices.partition import divides, on_shards, shards, split, whole
from lantern_jax.io.errors import LanternError

# Streams of the rejection coupling. Positions stay below 2**31, so these never meet fold_in(key, position).
_DRAFT_STREAM = 0x80000001
_ACCEPT_STREAM = 0x80000002
_RESIDUAL_STREAM = 0x80000003
# Streams of windows, for redrawn guesses.
_KEEP_STREAM = 0x80000011
_WINDOW_STREAM = 0x80000012

_ARGMAX_BLOCK = 128
# With JAX's other generators a row's numbers depend on the rows beside it.
_GENERATOR = "threefry2x32"


class SamplingParams(Record):
    """Knobs of the sampling distribution, shared by the batch.

    The set of filters is static and the values are traced, so a sweep over values compiles once for each set. Programs
    that serve any values apply all filters.

    Attributes:
        temperature: float32 [], at least 0.001; not read when ``greedy``.
        top_k: int32 [], keeps the codes that fewer than k others beat (ties at the threshold stay); 0, and V or more,
            keep all.
        top_p: float32 [], in (0, 1], keeps the codes with less than this mass strictly above them, on the
            renormalized top-k; 1 keeps all.
        min_p: float32 [], in [0, 1], keeps the codes with at least this share of the best one's probability
            (arXiv 2407.01082); 0 keeps all.
        greedy: static; the token is the argmax, without filters or noise.
        filters: static; which of "top_k", "top_p" and "min_p" are applied. The values of the others are not read.

    Example:
        >>> lantern_jax.SamplingParams.create(temperature=0.9, top_k=100).filters
        ('top_k',)
        >>> lantern_jax.SamplingParams.create(temperature=0).greedy
        True
    """

    temperature: Float[Array, ""]
    top_k: Int[Array, ""]
    top_p: Float[Array, ""]
    min_p: Float[Array, ""]
    greedy: bool = flax.struct.field(pytree_node=False, default=False)
    filters: tuple[str, ...] = flax.struct.field(pytree_node=False, default=())

    @classmethod
    def create(
        cls,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        vocab_size: int | None = None,
        min_p: float = 0.0,
    ) -> "SamplingParams":
        """Checks Python numbers and makes the record, with the filters that they need.

        Args:
            temperature: 0, which is greedy, or at least 0.001: less would reduce float32 logits to their order, or
                make them infinite.
            top_k, top_p, min_p: 0, 1 and 0 are off, and so is a ``top_k`` of ``vocab_size``, if that is known.

        Raises:
            LanternError: a number outside its range; a ``top_k`` above ``vocab_size``.
        """
        TEMPERATURE.check("temperature", temperature)
        TOP_K.check("top_k", top_k)
        TOP_P.check("top_p", top_p)
        MIN_P.check("min_p", min_p)
        if vocab_size is not None and top_k > vocab_size:
            raise LanternError(
                f"top_k {top_k} is more than the {vocab_size} codes: give at most {vocab_size}"
            )
        greedy = temperature == 0
        wanted = {"top_k": top_k not in (0, vocab_size), "top_p": top_p < 1, "min_p": min_p > 0}
        return cls(
            temperature=jnp.asarray(temperature, jnp.float32),
            top_k=jnp.asarray(int(top_k), jnp.int32),
            top_p=jnp.asarray(top_p, jnp.float32),
            min_p=jnp.asarray(min_p, jnp.float32),
            greedy=greedy,
            filters=tuple(name for name in FILTERS if wanted[name] and not greedy),
        )


def apply_guidance(logits: Float[Array, "G B *rest"], scale: Float[Array, " B"]) -> Float[Array, "B *rest"]:
    """Applies classifier-free guidance: ``uncond + scale * (cond - uncond)`` in float32.

    ``logits`` has the conditional row and, unless there is no guidance, the unconditional one; raises LanternError for
    any other number of rows.
    """
    if logits.shape[0] not in (1, 2):
        raise LanternError(f"logits have {logits.shape[0]} guidance rows: give 1, or 2 (conditional first)")
    cond, uncond = logits[0].astype(jnp.float32), logits[-1].astype(jnp.float32)
    if logits.shape[0] == 1:
        return cond
    scale = scale.astype(jnp.float32).reshape(scale.shape + (1,) * (cond.ndim - 1))
    return uncond + scale * (cond - uncond)


def process_logits(logits: Float[Array, "*rows V"], params: SamplingParams) -> Float[Array, "*rows V"]:
    """Returns log-probabilities of the sampling distribution: temperature, then each filter on what is left.

    When greedy this is the log-softmax at temperature 1, unfiltered: its argmax is the token, and relaxed acceptance
    reads its probabilities. Thresholds take a fixed number of passes; the vocabulary is never sorted.

    Args:
        logits: guided logits, -inf at ids that are not allowed; at least one finite entry per row.

    Returns:
        float32 log-probabilities, -inf where a code was filtered out; a row with a NaN is NaN throughout.

    Raises:
        LanternError: ``params.filters`` names anything but "top_k", "top_p" and "min_p".

    Example:
        >>> sampling = lantern_jax.SamplingParams.create(top_k=2)
        >>> np.exp(lantern_jax.process_logits(jnp.array([[2.0, 1.0, 0.0]]), sampling)).round(2)
        array([[0.73, 0.27, 0.  ]], dtype=float32)
    """
    if not set(params.filters) <= set(FILTERS):
        raise LanternError(f"filters {params.filters} are not valid: give some of {FILTERS}")
    values = split(logits.astype(jnp.float32), -1)
    if params.greedy:
        return jax.nn.log_softmax(values, axis=-1)
    values = values / params.temperature
    values = filtered(values, params.filters, params.top_k, params.top_p, params.min_p)
    return jax.nn.log_softmax(values, axis=-1)


def sequence_keys(seeds: Int[Any, "*B"], numbers: Int[Any, " B"]) -> Key[Array, " B"]:
    """Returns the key of each sequence, fold_in(key(seed), number), independent of JAX's default generator.

    ``seeds`` is one seed for all sequences, or one for each.
    """

    def key(seed, number) -> Key[Array, ""]:
        return jax.random.fold_in(jax.random.key(seed, impl=_GENERATOR), number)

    numbers = jnp.asarray(numbers, jnp.uint32)
    return jax.vmap(key)(jnp.broadcast_to(jnp.asarray(seeds, jnp.uint32), numbers.shape), numbers)


def gumbel_noise(
    keys: Key[Array, " B"], positions: Int[Array, "B L"], vocab_size: int
) -> Float[Array, "B L V"]:
    """Draws the shared noise of positions: row [b, l] depends only on ``keys[b]`` and ``positions[b, l]``.

    ``positions`` count generated tokens from 0. Greedy decoding draws no noise. Raises LanternError for keys of a
    generator other than Threefry, JAX's default.

    Example:
        >>> keys = jax.random.split(jax.random.key(7), 1)
        >>> noise = lantern_jax.gumbel_noise(keys, jnp.array([[4, 5]]), 16)
        >>> noise.shape
        (1, 2, 16)
        >>> np.array_equal(noise[:, 1:], lantern_jax.gumbel_noise(keys, jnp.array([[5]]), 16))
        True
    """
    return _noise_rows(keys, positions, vocab_size, _gumbel)


def _noise_rows(keys: Key[Array, " B"], numbers: Int[Array, "B L"], vocab_size: int, noise: Callable):
    def row(key, number) -> Float[Array, " V"]:
        return noise(jax.random.fold_in(key, number), vocab_size)

    _check_generator(keys)
    return split(jax.vmap(jax.vmap(row, in_axes=(None, 0)))(keys, numbers), -1)


def _gumbel(key, vocab_size: int) -> Float[Array, " V"]:
    """Draws Gumbel noise that is fine in the upper tail, which decides every argmax.

    JAX's default mode draws one of 2**23 values and none above 15.95, though at 16384 codes one row in 512 should
    reach it. This mode draws twice the random bits; on the demo on a CPU that is under 1 % of a step.
    """
    return jax.random.gumbel(key, (vocab_size,), jnp.float32, mode="high")


@partial(jax.jit, static_argnums=1)
def _gumbel_of_words(key, vocab_size: int) -> Float[Array, " V"]:
    """Draws noise that is as fine in the upper tail, up to 22.9, from one random word per entry: half the work, for the
    many rows of a draft. The word is 1 - u, which float32 holds to the last bit where it is small and the noise is
    large."""
    words = jax.random.bits(key, (vocab_size,), jnp.uint32)
    rest = jnp.minimum((words.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-rest))


def sample(
    logits: Float[Array, "B V"], keys: Key[Array, " B"], positions: Int[Array, " B"], params: SamplingParams
) -> Int[Array, " B"]:
    """Samples plain decoding's tokens at the given positions of the streams; int32."""
    noise = None if params.greedy else gumbel_noise(keys, positions[:, None], logits.shape[-1])[:, 0]
    return gumbel_argmax(process_logits(logits, params), noise)


def gumbel_argmax(
    log_probs: Float[Array, "*rows V"], noise: Float[Array, "*rows V"] | None = None
) -> Int[Array, "*rows"]:
    """Returns the token: argmax of perturbed log-probabilities, ties to the lowest id; int32. No noise is greedy."""
    return first_argmax(log_probs if noise is None else log_probs + noise)


def first_argmax(values: Float[Array, "*rows V"]) -> Int[Array, "*rows"]:
    """Returns the argmax over the vocabulary, ties to the lowest id; int32.

    A vocabulary of whole blocks is first reduced to the blocks' maxima: XLA vectorises a maximum, not an argmax
    (30 times faster on a CPU at 16384 codes).
    """
    if divides(values.shape[-1]):
        return _best_over_shards(values, 1)[1][..., 0]
    return _first_argmax(values)


def _first_argmax(values: Float[Array, "*rows V"]) -> Int[Array, "*rows"]:
    vocab = values.shape[-1]
    if vocab % _ARGMAX_BLOCK or vocab == _ARGMAX_BLOCK:
        return jnp.argmax(values, axis=-1).astype(jnp.int32)
    blocks = values.reshape(*values.shape[:-1], vocab // _ARGMAX_BLOCK, _ARGMAX_BLOCK)
    best = jnp.argmax(jnp.max(blocks, axis=-1), axis=-1).astype(jnp.int32)
    block = jnp.take_along_axis(blocks, best[..., None, None], axis=-2)[..., 0, :]
    return best * _ARGMAX_BLOCK + jnp.argmax(block, axis=-1).astype(jnp.int32)


def top_children(
    perturbed: Float[Array, "B M V"], k: int
) -> tuple[Float[Array, "B M k"], Int[Array, "B M k"]]:
    """Returns the ``k`` best codes of every row, best first, ties to the lowest id: (values, int32 ids); raises
    LanternError unless k is in 1..V."""
    vocab = perturbed.shape[-1]
    if not 1 <= k <= vocab:
        raise LanternError(f"cannot take {k} children from {vocab} codes: give 1 to {vocab}")
    if divides(vocab):
        return _best_over_shards(perturbed, k)
    values, ids = lax.top_k(perturbed, k)
    return values, ids.astype(jnp.int32)


def _best_over_shards(
    values: Float[Array, "*rows V"], k: int
) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """Does what ``top_children`` does, for codes split over the model axis: gathers each device's best codes."""
    count, rows = shards(), values.shape[:-1]
    parts = split(values.reshape(*rows, count, -1), -2)
    if k == 1:
        best, ids = jnp.max(parts, axis=-1, keepdims=True), _first_argmax(parts)[..., None]
    else:
        best, ids = on_shards(partial(lax.top_k, k=min(k, parts.shape[-1])), parts, -2)
    first = jnp.arange(count, dtype=jnp.int32)[:, None] * parts.shape[-1]
    ids = ids.astype(jnp.int32) + jnp.broadcast_to(first, ids.shape)
    # One exchange for both, in the order of ids: ties go to the lowest.
    both = whole(jnp.stack([lax.bitcast_convert_type(best, jnp.int32), ids], axis=-1)).reshape(*rows, -1, 2)
    best, ids = lax.bitcast_convert_type(both[..., 0], jnp.float32), both[..., 1]
    if k == 1:
        at = jnp.argmax(best, axis=-1, keepdims=True).astype(jnp.int32)
    else:
        at = lax.top_k(best, k)[1].astype(jnp.int32)
    return tuple(jnp.take_along_axis(part, at, axis=-1) for part in (best, ids))


def draft_noise(
    keys: Key[Array, " B"],
    positions: Int[Array, " B"],
    rounds: Int[Array, " B"],
    nodes: Int[Array, " M"] | Int[Array, "B M"],
    vocab_size: int,
) -> Float[Array, "B M V"]:
    """Draws the noise that drafts the children of ``nodes`` under the rejection coupling.

    It is independent of the target's noise, of other nodes and of other rounds: the top-K of ``log q + noise`` are K
    draws without replacement from q, in order.

    Args:
        positions: the position that each root predicts.
        rounds: the number of each sequence's round.
        nodes: ids of the nodes whose children are drafted, the same for all sequences or given for each.
    """
    nodes = jnp.asarray(nodes, jnp.int32)
    nodes = jnp.broadcast_to(nodes, (keys.shape[0], nodes.shape[-1]))
    streams = _stream(keys, _DRAFT_STREAM, positions, rounds)
    return _noise_rows(streams, nodes, vocab_size, _gumbel_of_words)


def acceptance_uniforms(
    keys: Key[Array, " B"], positions: Int[Array, " B"], rounds: Int[Array, " B"], num_nodes: int
) -> Float[Array, "B N"]:
    """Draws uniform numbers in [0, 1) for the rejection coupling's accept tests, one per tree node.

    They are multiples of 2**-23: ``u < ratio`` holds with probability ``ratio`` to within that step, the ratio's own
    rounding.
    """
    return _uniforms(_stream(keys, _ACCEPT_STREAM, positions, rounds), num_nodes)


def residual_noise(
    keys: Key[Array, " B"], positions: Int[Array, " B"], rounds: Int[Array, " B"], vocab_size: int
) -> Float[Array, "B V"]:
    """Draws Gumbel noise for the rejection coupling's draw from the last residual."""
    streams = _stream(keys, _RESIDUAL_STREAM, positions, rounds)
    return split(jax.vmap(partial(_gumbel, vocab_size=vocab_size))(streams), -1)


def keep_uniforms(
    keys: Key[Array, " B"], positions: Int[Array, " B"], rounds: Int[Array, " B"], window: int
) -> Float[Array, "B W"]:
    """Draws uniform numbers in [0, 1) that decide which guesses of a window are kept, one per place."""
    return _uniforms(_stream(keys, _KEEP_STREAM, positions, rounds), window)


def window_noise(
    keys: Key[Array, " B"], positions: Int[Array, "B W"], vocab_size: int
) -> Float[Array, "B W V"]:
    """Draws Gumbel noise for guesses, the same for a position in every round; no test or residual draw reads it."""
    streams = jax.vmap(lambda key: jax.random.fold_in(key, _WINDOW_STREAM))(keys)
    return gumbel_noise(streams, positions, vocab_size)


def _uniforms(streams: Key[Array, " B"], count: int) -> Float[Array, "B {count}"]:
    return jax.vmap(lambda key: jax.random.uniform(key, (count,), jnp.float32))(streams)


def _stream(keys, stream: int, positions, rounds):
    def fold(key, position, number):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, stream), position), number)

    _check_generator(keys)
    return jax.vmap(fold)(keys, positions, rounds)


def _check_generator(keys: Key[Array, " B"]) -> None:
    generator = jax.random.key_impl(keys)
    if generator != _GENERATOR:
        raise LanternError(
            f"keys are of the generator {generator!r}, which draws other numbers in another batch: make them by "
            f"jax.random.key(seed, impl={_GENERATOR!r})"
        )
