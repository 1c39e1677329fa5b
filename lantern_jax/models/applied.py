"""A target from one function of another library: prompts, padding, guidance and the cache are added here.

Axes: G guidance rows, B batch, P prefix, N new positions, S slots of the cache (prefix first, then tokens), V codes,
D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from lantern_jax.decoding.cache import slots_mask
from lantern_jax.decoding.concrete import check_ids, check_prompts
from lantern_jax.decoding.protocols import Prefix, Target
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.sampling import apply_guidance
from lantern_jax.io.errors import LanternError
from lantern_jax.models.positions import padded_causal_mask, row_positions
from lantern_jax.models.targets import batched


class AppliedCache(Record):
    """A model's keys and values of everything committed.

    Attributes:
        past: leaves [G, B, S, ...].
        prefix_mask: bool [G, B, P], prefix slots in use.
        length: int32 [B], tokens committed after the prefix.
        guidance: float32 [B]; None where G is 1.
    """

    past: PyTree
    prefix_mask: Bool[Array, "G B P"]
    length: Int[Array, " B"]
    guidance: Float[Array, " B"] | None


def target_from_apply(
    apply: Callable[..., tuple[Array, Array | None, PyTree]],
    *,
    num_codes: int,
    num_tokens: int,
    first_code: int | None = None,
    unconditional: int | None = None,
    forced_tokens: tuple[int, ...] | None = None,
    vocab_size: int | None = None,
) -> Target:
    """Returns the target record of a transformer that is conditioned on tokens.

    Its conditioning is int32 [B, P], ids of the model's vocabulary, or anything with such ``tokens`` and a ``mask``,
    bool [B, P], False at padding, which is on the left. A prompt has at least one token, if only the one that begins
    a picture. Make each record once: every new one is compiled anew.

    Args:
        apply: (params, tokens, positions, mask, past) -> (logits, features, keys and values).
            tokens int32 [B, N]: ids of the model's vocabulary.
            positions int32 [B, N]: counted from 0 at the first token that is not padding; guesses beyond the
            picture's end get its last place, so there are at most P + T - 1.
            mask bool [B, N, S + N]: which slots of the past, then which new positions, each position sees.
            past: None at first, when S is 0; then the earlier results with S slots: leaves [B, S, ...].
            logits [B, N, at least first_code + V]; features [B, N, D], or None if no drafter needs them; keys and
            values of the new positions only: any pytree with leaves [B, N, ...].
        num_codes, num_tokens, forced_tokens: V, T and the forced ids of the stream, as in ``Target``.
        first_code: the model's id of code 0; the others follow. None means 0, for a model whose only ids are codes.
        unconditional: the id that replaces each token of the prompt in unconditional rows; None allows decoding
            without guidance only.
        vocab_size: number of the model's ids; prompts with others are refused. None refuses negative ids only.

    Raises:
        LanternError: ids that are not below ``vocab_size``; when a prompt is read, ids that are not whole numbers or
            not the model's, or padding on the right.

    Example:
        >>> def apply(params, tokens, positions, mask, past):  # what follows a code depends on it alone
        ...     return params[tokens], None, tokens
        >>> target = lantern_jax.target_from_apply(apply, num_codes=4, num_tokens=16)
        >>> table = jnp.log(jnp.array([[0.1, 0.7, 0.1, 0.1]] * 2 + [[0.1, 0.1, 0.1, 0.7]] * 2))
        >>> prompts = jnp.array([[0], [3]])
        >>> keys = jax.random.split(jax.random.key(7), 2)
        >>> lantern_jax.autoregressive_decode(target, table, prompts, keys).tokens.shape
        (2, 16)
    """

    model = _Model(apply, num_codes, num_tokens, first_code, unconditional, vocab_size)
    first, forced = model.first, (code for code in forced_tokens or () if code >= 0)
    ids = (first, unconditional or 0, *(first + code for code in (num_codes - 1, *forced)))
    check_ids("first_code, unconditional, codes and forced tokens", np.array(ids), vocab_size)
    return Target(
        model.prefill, model.score, _commit, num_codes, num_tokens, forced_tokens, first, model.check
    )


@dataclass(frozen=True)
class _Model:
    """The arguments of ``target_from_apply``; its methods are the target's functions."""

    apply: Callable
    num_codes: int
    num_tokens: int
    first_code: int | None
    unconditional: int | None
    vocab_size: int | None

    @property
    def first(self) -> int:
        """The id of code 0."""
        return self.first_code or 0

    def check(self, conditioning) -> None:
        """Checks prompts, as ``Target.check`` does."""
        check_prompts(self.vocab_size, conditioning)

    def prefill(self, params, conditioning, guidance, slots):
        """Runs prompts, as ``Target.prefill`` does."""
        self.check(conditioning)
        check_ids("slots", slots, None)
        if guidance is not None and self.unconditional is None:
            raise LanternError(
                "this target has no unconditional rows: give target_from_apply unconditional=ID"
            )
        tokens, valid = _rows(conditioning, None if guidance is None else self.unconditional)
        positions = row_positions(valid)
        logits, features, made = self.run(params, tokens, positions, padded_causal_mask(valid), None)
        past = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, 0), (0, 0), (0, slots), *[(0, 0)] * (leaf.ndim - 3)]), made
        )
        cache = AppliedCache(past, valid, jnp.zeros(tokens.shape[1], jnp.int32), guidance)
        prefix = Prefix(features, tokens, valid, positions, guidance)
        return cache, apply_guidance(logits[:, :, -1], guidance), prefix

    def score(self, params, cache: AppliedCache, tokens, depth, ancestors, visible=None):
        """Scores a block, as ``Target.score`` does."""
        rows, (batch, new) = cache.prefix_mask.shape[0], tokens.shape
        slots = jax.tree.leaves(cache.past)[0].shape[2] - cache.prefix_mask.shape[2]
        seen = slots_mask(cache.prefix_mask, cache.length, slots, visible)
        depth, ancestors = batched(depth, ancestors)
        depth = jnp.broadcast_to(depth, (batch, new))
        before = jnp.sum(cache.prefix_mask, axis=-1, dtype=jnp.int32)
        # The last token is never read: guesses beyond it are discarded and need no position of their own.
        places = jnp.minimum(cache.length[:, None] + depth, np.int32(max(self.num_tokens - 2, 0)))
        positions = before[:, :, None] + places[None]
        seen = jnp.broadcast_to(seen, (rows, batch, new, seen.shape[-1]))
        mask = jnp.concatenate([seen, jnp.broadcast_to(ancestors[None], (rows, batch, new, new))], axis=-1)
        ids = jnp.broadcast_to((tokens + np.int32(self.first))[None], (rows, batch, new))
        logits, features, made = self.run(params, ids, positions, mask, cache.past)
        return apply_guidance(logits, cache.guidance), features, made

    def run(self, params, tokens, positions, mask, past):
        """Runs the model on rows [G, B, ...]; the codes' logits are float32."""
        rows, batch, new = tokens.shape
        given = jax.tree.map(_joined, (tokens, positions, mask, past))
        logits, features, made = self.apply(params, *given)
        if features is None:
            features = jnp.zeros((rows * batch, new, 1), jnp.float32)
        if self.first_code is None and logits.shape[-1] != self.num_codes:
            raise LanternError(
                f"the model gives {logits.shape[-1]} logits for {self.num_codes} codes: give code 0's id as first_code"
            )
        codes = logits[..., self.first : self.first + self.num_codes].astype(jnp.float32)
        return jax.tree.map(lambda leaf: leaf.reshape(rows, batch, *leaf.shape[1:]), (codes, features, made))


def _rows(conditioning: Any, unconditional: int | None) -> tuple[Int[Array, "G B P"], Bool[Array, "G B P"]]:
    """Returns tokens and mask of prompts, and of unconditional rows if there is a token for them."""
    tokens = jnp.asarray(getattr(conditioning, "tokens", conditioning), jnp.int32)[None]
    valid = getattr(conditioning, "mask", None)
    valid = jnp.ones(tokens.shape, bool) if valid is None else jnp.asarray(valid, bool)[None]
    if unconditional is None:
        return tokens, valid
    return jnp.concatenate([tokens, jnp.full_like(tokens, unconditional)]), jnp.concatenate([valid, valid])


def _joined(leaf: Array) -> Array:
    """Reshapes [G, B, ...] to [G B, ...]."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _commit(
    cache: AppliedCache, block: PyTree, path: Int[Array, "B L"], count: Int[Array, " B"]
) -> AppliedCache:
    """Commits as ``cache.commit`` does, for any pytree: all L rows are written, even beyond the new length."""
    which, prefix = jnp.arange(len(path), dtype=jnp.int32)[:, None], cache.prefix_mask.shape[2]
    start = prefix + cache.length
    where = start[:, None] + jnp.arange(path.shape[1], dtype=jnp.int32)[None]

    def append(slots, rows):
        rows = rows[:, which, path].astype(slots.dtype)
        return slots.at[:, which, where].set(rows, mode="promise_in_bounds", unique_indices=True)

    return cache.replace(past=jax.tree.map(append, cache.past, block), length=cache.length + count)
