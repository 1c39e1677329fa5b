"""Collect the ranks of plain decoding's tokens in a drafter's order, at every root of some pictures.

A picture that was decoded plainly is decoded plainly again. In each step the drafter, which absorbs what is committed
as in real drafting, walks along the tokens that will follow, with the noise that chose them. Where a real round drafts
below a root, all nodes of the accepted path have been walked like this, so its drafts are these.

Axes: B batch, T stream tokens, V codes, n pictures.
"""

from functools import cache
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from lantern_jax.apps.measuring.subject import Subject
from lantern_jax.decoding import loop
from lantern_jax.decoding.acceptance import Strict
from lantern_jax.decoding.drafting.eagle import Committed, Drafter, catch_up
from lantern_jax.decoding.program import Inputs, Program
from lantern_jax.decoding.protocols import Draft, Drafting, Target
from lantern_jax.decoding.sampling import gumbel_noise, process_logits, sequence_keys
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.settings.settings import Settings

# Levels below a root.
MAX_DEPTH = 12


@flax.struct.dataclass
class Walk:
    """What the walks along a picture read.

    Attributes:
        drafting: the drafter's parameters.
        tokens: int32 [B, T], plain decoding's streams.
        keys: the sequences' keys.
    """

    drafting: Any
    tokens: Int[Array, "B T"]
    keys: Key[Array, " B"]


@flax.struct.dataclass
class WalkState:
    """The drafter's part of the state, and what was found.

    Attributes:
        committed: the drafter's part of the state.
        ranks: int32 [B, T, depth], of the token at a position and of those after it, drafted from the root before it.
    """

    committed: Committed
    ranks: Int[Array, "B T depth"]


@cache
def walking(drafter: Drafter, target: Target, depth: int) -> Drafting:
    """Returns a drafting that drafts nothing and notes ranks; its parameters are a ``Walk``."""
    total, forced = target.num_tokens, np.append(target.forced, np.full(depth, -1, np.int32))

    def init(params: Walk, prefix, slots, span) -> WalkState:
        # Before the root there may be forced tokens, which are walked too.
        committed = Committed.begin(drafter, params.drafting, prefix, slots, span, span - 1 + depth)
        return WalkState(committed, jnp.full((len(committed.count), total, depth), -1, jnp.int32))

    def propose(params: Walk, state: WalkState, pending, draws, sampling):
        committed, (walked, logits, root) = catch_up(drafter, params.drafting, state.committed, pending)
        longest = pending.tokens.shape[1]

        def step(carry, level):
            walked, logits, node = carry
            where = pending.position + level
            token = jnp.take_along_axis(params.tokens, jnp.minimum(where, total - 1)[:, None], axis=1)
            scores = process_logits(logits, sampling)
            if not sampling.greedy:
                scores = scores + gumbel_noise(params.keys, where[:, None], scores.shape[-1])[:, 0]
            fixed = jnp.asarray(forced)[jnp.minimum(where, total)] >= 0
            rank = jnp.where(fixed, 0, rank_of(scores, jnp.minimum(token[:, 0], scores.shape[-1] - 1)))
            walked, after = drafter.expand(params.drafting, walked, token, node[:, None])
            below = jnp.broadcast_to(longest + level, node.shape)
            return (walked, after[:, 0], below), jnp.where(where < total, rank, -1)

        levels = jnp.arange(depth, dtype=jnp.int32)
        _, ranks = lax.scan(step, (walked, logits, root), levels)
        at = jnp.arange(total, dtype=jnp.int32)[None] == pending.position[:, None]
        ranks = jnp.where(at[..., None], jnp.moveaxis(ranks, 0, 1)[:, None], state.ranks)
        return Draft(pending.tokens[:, -1:], DraftTree.empty()), WalkState(committed, ranks)

    def observe(params, state: WalkState, outcome) -> WalkState:
        return state.replace(committed=state.committed.after(outcome))

    return Drafting(init, propose, observe, 0)


def rank_of(scores: Float[Array, "B V"], tokens: Int[Array, " B"]) -> Int[Array, " B"]:
    """Counts the codes before a token in the order of the scores, with ties going to the lowest id."""
    chosen = jnp.take_along_axis(scores, tokens[:, None], axis=1)
    codes = jnp.arange(scores.shape[-1], dtype=jnp.int32)[None]
    before = (scores > chosen) | ((scores == chosen) & (codes < tokens[:, None]))
    return jnp.sum(before, axis=-1, dtype=jnp.int32)


_advance = jax.jit(
    lambda program, inputs: loop.advance(program, inputs, loop.start(program, inputs)).drafting.ranks,
    static_argnums=0,
)


def collect_ranks(
    subject: Subject,
    kind: str,
    settings: Settings,
    tokens: Int[np.ndarray, "n T"],
    *,
    batch: int = 16,
    depth: int = MAX_DEPTH,
) -> Int[np.ndarray, "n T depth"]:
    """Returns the ranks for every position of plainly decoded pictures; -1 where there is no root or no token.

    Args:
        subject: what was decoded.
        kind: one of the checkpoint's drafters.
        settings: guidance and sampling; the rest is not read.
        tokens: their streams, from picture number 0 on.
        batch: pictures walked together.
    """
    recipe, engine = subject.recipe, subject.engine
    target, drafter = recipe.target(kind), DRAFTERS[kind].make(recipe.drafters[kind], recipe.dtype)
    program = Program(target, walking(drafter, target, depth))
    found = []
    for start in range(0, len(tokens), batch):
        known = np.resize(tokens[start : start + batch], (batch, tokens.shape[1]))
        numbers = start + np.arange(batch, dtype=np.uint32)
        keys = sequence_keys(subject.seed, numbers)
        guidance = None if settings.guidance == 1 else np.full(batch, settings.guidance, np.float32)
        inputs = Inputs(
            engine.parameters.target, Walk(engine.drafter(kind), known, keys),
            subject.rows(start, batch), keys, guidance, np.ones(batch, bool),
            settings.sampling(recipe.config.num_codes), Strict(), None,
        )  # fmt: skip
        found.append(np.asarray(_advance(program, inputs))[: len(tokens) - start])
    return np.concatenate(found)
