"""Completion: the first tokens of a stream are given and the rest is decoded.

The given tokens are read like a prompt: scored in pieces and committed. Then the drafting is led along them: a short
stream of only the given tokens is decoded with a target that looks its results up instead of computing them. So a
drafting needs no code for completion: it sees the tokens and the target's features as if it had guessed all of them. In
place of the target's distributions it sees point masses at the given tokens, and nothing of what comes after them: so
the nodes that echo and led remember are forgotten.

What follows is plain decoding's continuation of the same tokens, since token i reads the noise of position i in any
case. So a picture's own seed completes its beginning into the same picture.

Axes: G guidance rows, B batch, K given tokens, N nodes, R pending tokens at most, S = R - 1 + L positions, V codes, D
feature width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding import contracts
from lantern_jax.decoding.concrete import at_hand, check_ids
from lantern_jax.decoding.echo import Memory
from lantern_jax.decoding.protocols import Drafting, Outcome, Pending, Target
from lantern_jax.decoding.record import Record
from lantern_jax.decoding.stream import Stream, draft_of, point_masses
from lantern_jax.decoding.topology import with_batch
from lantern_jax.devices.partition import varying_like
from lantern_jax.io.errors import LanternError

# Tokens read in one pass: more need more memory and are hardly faster.
PIECE = 64


class Completion(Record):
    """Conditioning of sequences whose first tokens are given.

    Attributes:
        conditioning: as the target takes it.
        tokens: int32 [B, K], the stream's first tokens, forced ones included; K is 1 to T - 1, and the last given token
            is a free one.

    Example:
        >>> from lantern_jax.decoding.completion import Completion
        >>> labels, tokens = jnp.array([[207], [281]]), jnp.array([[5, 7, 7], [3, 1, 4]])
        >>> begun = Completion(labels, tokens)  # for speculative_decode, in the place of the labels
        >>> begun.tokens.shape
        (2, 3)
    """

    conditioning: Any
    tokens: Int[Array, "B K"]


def parts(conditioning: Any) -> tuple[Any, Int[Array, "B K"] | None]:
    """Returns (the target's conditioning, the given tokens or None)."""
    if isinstance(conditioning, Completion):
        return conditioning.conditioning, conditioning.tokens
    return conditioning, None


def check(target: Target, conditioning: Any, in_rows: bool) -> None:
    """Raises LanternError unless the target takes the conditioning, and given tokens, if any, can begin its stream.

    ``in_rows`` tells whether rows run in parallel. Numbers are checked where they are known.
    """
    conditioning, given = parts(conditioning)
    if target.check is not None:
        target.check(conditioning)
    if given is None:
        return
    if in_rows:
        raise LanternError(
            "rows in parallel (zipar) know no given first tokens: complete with another method"
        )
    count = given.shape[-1]
    if given.ndim != 2 or not 1 <= count < target.num_tokens or target.forced[count - 1] >= 0:
        raise LanternError(
            f"given tokens have shape {given.shape}: give [B, K] with K from 1 to {target.num_tokens - 1}, the last "
            "of them free"
        )
    check_tokens("given token", target, given)


def check_tokens(name: str, target: Target, tokens: Int[Array, "B K"]) -> None:
    """Raises LanternError unless a stream can begin with the tokens, as far as they are known."""
    forced = target.forced[: tokens.shape[1]]
    check_ids(f"{name}s", tokens, target.vocab_size, forced < 0)
    known = at_hand(tokens)
    if known is not None and (known != forced)[:, forced >= 0].any():
        place = int(np.argmax(((known != forced) & (forced >= 0)).any(axis=0)))
        raise LanternError(
            f"{name} {place} is not {forced[place]}, which the stream's format forces there: leave it in"
        )


def read(
    target: Target, params, cache, given: Int[Array, "B K"], take: Callable[..., Array], axis: int
) -> tuple[Any, Array]:
    """Commits all given tokens but the last, in pieces.

    Args:
        take: (logits [B, M, V], features [G, B, M, D], the token after each [B, M]) -> what to take from a piece.
        axis: its axis of the M positions, along which pieces are joined.

    Returns:
        (cache, what was taken from all K - 1 tokens).
    """
    batch, count = given.shape[0], given.shape[1] - 1

    def piece(cache, tokens: tuple[Int[Array, "B M"], Int[Array, "B M"]]):
        tokens, following = tokens
        width = tokens.shape[1]
        steps = np.arange(width, dtype=np.int32)
        scored = contracts.run_score(target, params, cache, tokens, steps, np.tri(width, dtype=bool))
        logits, features, block = scored
        path = jnp.broadcast_to(jnp.asarray(steps)[None], tokens.shape)
        count = jnp.full(batch, width, jnp.int32)
        cache = contracts.run("target.commit", target.commit, cache, block, path, count)
        return cache, take(logits, features, following)

    # The remainder first: a piece that is not full would write beyond the end.
    odd, found, pairs = count % PIECE, [], (given[:, :-1], given[:, 1:])
    if odd:
        cache, taken = piece(cache, tuple(tokens[:, :odd] for tokens in pairs))
        found.append(taken)
    if count > odd:
        pieces = tuple(tokens[:, odd:].reshape(batch, -1, PIECE).swapaxes(0, 1) for tokens in pairs)
        cache, taken = lax.scan(piece, varying_like(cache, given), pieces)
        found.append(jnp.concatenate(list(taken), axis=axis))
    return cache, jnp.concatenate(found, axis=axis)


def along(
    target: Target, drafting: Drafting, given: Int[Array, "B K"], features: Float[Array, "G B K-1 D"]
) -> tuple[Target, Drafting]:
    """Returns what decodes only the given tokens: a target that looks them up, and a drafting that guesses them."""
    short = _looked_up(target, given, features)
    # The short stream may have fewer pending tokens; the drafting gets as many places as it has later.
    return short, _led(drafting, given, Stream(target).longest - Stream(short).longest)


def forgotten(drafting: Any) -> Any:
    """Returns a drafting's state without remembered nodes: the target said nothing after those of the given tokens."""

    def forget(part):
        known = isinstance(part, Memory)
        return part.replace(positions=jnp.full_like(part.positions, -1)) if known else part

    return jax.tree.map(forget, drafting, is_leaf=lambda part: isinstance(part, Memory))


def _looked_up(target: Target, given, features) -> Target:
    """Makes a target that is certain of the given tokens; its cache is int32 [B], the number committed."""
    count = given.shape[1]

    def score(params, length, tokens, depth, ancestors):
        place = length[:, None] + with_batch(depth, 2) + jnp.zeros_like(tokens)
        known = jnp.minimum(place, count - 2)[None, :, :, None]
        logits = jnp.zeros((*tokens.shape, target.vocab_size), jnp.float32)
        logits = point_masses(logits, _ids_at(given, place + 1))
        return logits, jnp.take_along_axis(features, known, axis=2), ()

    def commit(length, block, path, count):
        return length + count

    forced = None if target.forced_tokens is None else target.forced_tokens[:count]
    return replace(target, score=score, commit=commit, num_tokens=count, forced_tokens=forced)


def _led(drafting: Drafting, given, more: int) -> Drafting:
    """Makes a drafting that guesses the given tokens; it has ``more`` places for pending tokens beyond the stream's."""

    def propose(params, state, pending: Pending, draws, sampling):
        pending = pending.replace(tokens=jnp.pad(pending.tokens, ((0, 0), (more, 0))))
        draft, state = drafting.propose(params, state, pending, draws, sampling)
        first = pending.position[:, None]
        return draft_of(draft, lambda depth: _ids_at(given, first + with_batch(depth, 2))), state

    def observe(params, state, outcome: Outcome):
        tokens = jnp.pad(outcome.tokens, ((0, 0), (0, more)))
        features = jnp.pad(outcome.features, ((0, 0), (0, 0), (0, more), (0, 0)))
        return drafting.observe(params, state, outcome.replace(tokens=tokens, features=features))

    return replace(drafting, propose=propose, observe=observe)


def _ids_at(given: Int[Array, "B K"], place: Int[Array, "B M"]) -> Int[Array, "B M"]:
    """Returns the tokens at places of the stream, -1 past the given ones."""
    count = given.shape[1]
    ids = jnp.take_along_axis(given, jnp.minimum(place, count - 1), axis=1)
    return jnp.where(place < count, ids, jnp.int32(-1))
