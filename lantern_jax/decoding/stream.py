"""A sequence's token stream: where tokens are forced, which are pending, and what a round adds.

Axes: B batch, T stream tokens, R pending tokens at most, N nodes (root included), L = max depth + 1,
S = R - 1 + L positions.
"""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.protocols import Draft, Pending, Target
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.topology import drafted, rows_depth, with_batch
from lantern_jax.decoding.verification import Verification


class Decoded(Record):
    """What a generation returns.

    Attributes:
        tokens: int32 [B, T], the stream; all -1 for a sequence that was not active.
        rounds: int32 [B], target passes after prefill.
        accepted: int32 [B, L], how many rounds accepted 0, 1, ... draft tokens, forced ones not counted.
        round_of_token: int32 [B, T], the round that produced a token (0 = prefill); a forced token has the round of
            the token before it.
        substituted: int32 [B], accepted draft tokens that the strict rule refuses on the same random numbers.
        distance: float32 [B], the sum of their codebook distances to the strict rule's tokens.
        finite: bool [B], False where the target's logits were not numbers: such a sequence ends there, and its
            tokens mean nothing.

    Example:
        >>> from lantern_jax.decoding.stream import Decoded
        >>> one, two = np.ones(1, np.int32), np.array([[2, 1]])
        >>> decoded = Decoded(
        ...     tokens=np.array([[5, 7, 7, 3]]), rounds=2 * one, accepted=np.array([[1, 1]]),
        ...     round_of_token=np.array([[0, 1, 1, 2]]), substituted=0 * one, distance=0.0 * one, finite=one > 0,
        ... )
        >>> (decoded.tokens.size - 1) / decoded.rounds.sum()  # tokens per round
        np.float64(1.5)
    """

    tokens: Int[Array, "B T"]
    rounds: Int[Array, " B"]
    accepted: Int[Array, "B L"]
    round_of_token: Int[Array, "B T"]
    substituted: Int[Array, " B"]
    distance: Float[Array, " B"]
    finite: Bool[Array, " B"]


class Stream:
    """Where a target's tokens are forced, as constant tables over stream positions.

    Attributes:
        length: T.
        vocab_size: V.
        forced: int32 [T], the forced id, -1 where free.
        run: int32 [T + 1], length of the run of forced tokens that starts at a position.
        free: int32 [T + 1], the number of free positions before a position.
        longest: R, the most tokens that are ever pending.
    """

    def __init__(self, target: Target):
        self.forced, self.length, self.vocab_size = target.forced, target.num_tokens, target.vocab_size
        self.run = np.zeros(self.length + 1, np.int32)
        self.free = np.concatenate([[0], np.cumsum(self.forced < 0)]).astype(np.int32)
        for i in range(self.length - 1, -1, -1):
            self.run[i] = self.run[i + 1] + 1 if self.forced[i] >= 0 else 0
        # A run that ends the stream is never pending: the sequence is finished.
        inner = [run for i, run in enumerate(self.run[: self.length]) if i + run < self.length]
        self.longest = 1 + max(inner, default=0)

    def begin(self, first: Int[Array, "B K"], finite: Bool[Array, " B"], levels: int) -> Decoded:
        """Makes the record of sequences whose first tokens are known."""
        batch, known = first.shape
        tokens = jnp.broadcast_to(jnp.asarray(self.forced)[None], (batch, self.length))
        return Decoded(
            tokens=jnp.concatenate([first, tokens[:, known:]], axis=1),
            rounds=jnp.zeros(batch, jnp.int32),
            accepted=jnp.zeros((batch, levels), jnp.int32),
            round_of_token=jnp.zeros((batch, self.length), jnp.int32),
            substituted=jnp.zeros(batch, jnp.int32),
            distance=jnp.zeros(batch, jnp.float32),
            finite=finite,
        )

    def pending(self, decoded: Decoded, length: Int[Array, " B"], count: Int[Array, " B"]) -> Pending:
        """Returns the pending tokens of sequences with ``length`` known tokens."""
        behind = np.arange(-self.longest, 0, dtype=np.int32)[None]
        before = length[:, None] - np.arange(1, 4, dtype=np.int32)[None]
        history = jnp.where(before >= 0, take(decoded.tokens, before), jnp.int32(-1))
        # A finished sequence may count a longer run at the stream's end, which is never fed to the target.
        count = jnp.minimum(count, jnp.int32(self.longest))
        return Pending(take(decoded.tokens, length[:, None] + behind), count, length, history)

    def forced_draft(self, draft: Draft, position: Int[Array, " B"]) -> Draft:
        """Puts forced tokens on the nodes of forced positions, so that paths continue past them, and codes elsewhere.

        A guess that is not a code (a drafting of one's own may make any) becomes one before it is compared, so that
        what is tested is what is written. ``position`` is the one that the root predicts.
        """
        guesses = jnp.clip(draft.tokens[:, 1:], 0, self.vocab_size - 1)
        draft = draft.replace(tokens=jnp.concatenate([draft.tokens[:, :1], guesses], axis=1))
        return draft_of(draft, partial(self._forced_after, position)) if self.run.any() else draft

    def forced_logits(
        self, logits: Float[Array, "B M V"], position: Int[Array, " B"], depth: Int[Array, "*B M"]
    ) -> Float[Array, "B M V"]:
        """Returns logits after nodes of these depths, with point masses where the next token is forced."""
        return point_masses(logits, self._forced_after(position, depth)) if self.run.any() else logits

    def _forced_after(self, position: Int[Array, " B"], depth: Int[Array, "*B M"]) -> Int[Array, "B M"]:
        """Returns the id forced after a node, -1 where it is free."""
        table = np.append(self.forced, np.int32(-1))
        return jnp.asarray(table)[jnp.minimum(position[:, None] + with_batch(depth, 2), self.length)]

    def block(self, pending: Pending, draft: Draft):
        """Lays out what the target scores: pending tokens but the root, right-aligned in R - 1 places, then the draft.

        Returns tokens [B, R - 1 + N], depth and ancestors as ``Target.score`` takes them. Empty places see only
        themselves, and no other place sees them.
        """
        topology, extra = draft.topology, self.longest - 1
        if not extra:
            return draft.tokens, topology.depth, topology.ancestors
        behind = np.arange(-extra, 0, dtype=np.int32)[None]
        root_depth = (pending.count - 1)[:, None]
        depth = with_batch(topology.depth, 2)
        depth = jnp.maximum(jnp.concatenate([root_depth + behind, root_depth + depth], axis=1), 0)
        ancestors = with_batch(topology.ancestors, 3)
        batch, nodes = ancestors.shape[:2]
        slots = np.arange(extra + nodes)
        before = jnp.broadcast_to(
            jnp.asarray(slots[:, None] >= slots[None, :extra])[None], (batch, len(slots), extra)
        )
        after = jnp.pad(ancestors, ((0, 0), (extra, 0), (0, 0)))
        sees = jnp.concatenate([before, after], axis=2)
        there = jnp.asarray(slots, jnp.int32)[None] >= extra - root_depth
        ancestors = (sees & there[:, None, :]) | np.eye(slots.size, dtype=bool)[None]
        return jnp.concatenate([pending.tokens[:, :-1], draft.tokens], axis=1), depth, ancestors

    def block_path(self, pending: Pending, path: Int[Array, "B L"]) -> Int[Array, "B S"]:
        """Turns a path of nodes into places of the block: the pending chain, which ends in the root, then the nodes."""
        levels = path.shape[1]
        step = jnp.arange(self.longest - 1 + levels, dtype=jnp.int32)[None]
        chain = (pending.count - 1)[:, None]
        on_path = jnp.clip(step - chain, 0, levels - 1)
        nodes = self.longest - 1 + jnp.take_along_axis(path, on_path, axis=1)
        return jnp.where(step < chain, (self.longest - pending.count)[:, None] + step, nodes)

    def record(
        self,
        decoded: Decoded,
        length: Int[Array, " B"],
        running: Bool[Array, " B"],
        drafted: Int[Array, "B N"],
        verdict: Verification,
    ) -> tuple[Decoded, Int[Array, " B"]]:
        """Writes a round's tokens and statistics; also returns how many stream tokens [B] became known."""
        end = jnp.minimum(length + verdict.count + 1, self.length)
        added = jnp.where(running, verdict.count + 1 + jnp.asarray(self.run)[end], 0)
        decoded = decoded.replace(rounds=decoded.rounds + running.astype(jnp.int32))
        decoded = self._with_tokens(decoded, length, added, drafted, verdict)
        return self._with_statistics(decoded, length, running, verdict), added

    def _with_tokens(self, decoded: Decoded, length, added, drafted, verdict: Verification) -> Decoded:
        """Writes the accepted path and the bonus token after it, and the round of all that became known."""
        path_tokens = jnp.take_along_axis(drafted, verdict.path, axis=1)
        # The tokens after the root; the last column is a place for the bonus token of a full path.
        emitted = jnp.concatenate([path_tokens[:, 1:], path_tokens[:, :1]], axis=1)
        step = jnp.arange(emitted.shape[1], dtype=jnp.int32)[None]
        emitted = jnp.where(step == verdict.count[:, None], verdict.bonus[:, None], emitted)
        offset = jnp.arange(self.length, dtype=jnp.int32)[None] - length[:, None]
        fresh = (offset >= 0) & (offset < added[:, None])
        sampled = fresh & (offset <= verdict.count[:, None]) & (self.forced < 0)[None]
        values = jnp.take_along_axis(emitted, jnp.clip(offset, 0, emitted.shape[1] - 1), axis=1)
        return decoded.replace(
            tokens=jnp.where(sampled, values, decoded.tokens),
            round_of_token=jnp.where(fresh, decoded.rounds[:, None], decoded.round_of_token),
        )

    def _with_statistics(self, decoded: Decoded, length, running, verdict: Verification) -> Decoded:
        """Counts the round under the number of free tokens it accepted, and adds up its substitutions."""
        step = jnp.arange(decoded.accepted.shape[1], dtype=jnp.int32)[None]
        # The bonus token is not counted, and may be a forced one.
        free_before, free_then = (jnp.asarray(self.free)[known] for known in (length, length + verdict.count))
        this_round = (step == (free_then - free_before)[:, None]) & running[:, None]
        kept = (step[:, :-1] < verdict.count[:, None]) & running[:, None]
        swapped = kept & verdict.substituted
        return decoded.replace(
            accepted=decoded.accepted + this_round.astype(jnp.int32),
            substituted=decoded.substituted + jnp.sum(swapped, axis=1, dtype=jnp.int32),
            distance=decoded.distance + jnp.sum(jnp.where(swapped, verdict.distance, jnp.float32(0)), axis=1),
        )


def draft_of(draft: Draft, ids_after: Callable[[Int[Array, "*B M"]], Int[Array, "B M"]]) -> Draft:
    """Puts known tokens on the nodes of a draft; ``ids_after`` gives the ids after nodes of given depths, or -1."""
    topology, log_q = draft.topology, draft.log_q
    if not topology.max_depth:
        return draft
    ids = ids_after(drafted(topology.depth) - 1)
    tokens = jnp.where(ids >= 0, ids, draft.tokens[:, 1:])
    if log_q is not None:
        log_q = point_masses(log_q, ids_after(rows_depth(topology)))
    return draft.replace(tokens=jnp.concatenate([draft.tokens[:, :1], tokens], axis=1), log_q=log_q)


def point_masses(logits: Float[Array, "B M V"], ids: Int[Array, "B M"]) -> Float[Array, "B M V"]:
    """Replaces logits by point masses at these ids; where an id is -1 they stay.

    The last code stands in for an id outside the V codes (a row end): nothing else can be drafted there.
    """
    ids = jnp.minimum(ids, logits.shape[-1] - 1)[..., None]
    codes = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
    return jnp.where(ids < 0, logits, jnp.where(codes == ids, jnp.float32(0), -jnp.inf))


def take(values: Array, where: Int[Array, "B M"]) -> Array:
    """Takes values [B, T] at places, beyond either end the one there."""
    return jnp.take_along_axis(values, jnp.clip(where, 0, values.shape[1] - 1), axis=1)
