"""Drafting a static tree with an EAGLE-style drafter (arXiv 2401.15077): level by level, each level in one pass.

Axes: G guidance rows, B batch, N tree nodes (root included), M nodes of a level, R pending tokens at most,
S = R - 1 + L positions, L = max depth + 1, V codes, D feature width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.protocols import Draft, Drafting, Outcome, Pending
from lantern_jax.decoding.sampling import SamplingParams, process_logits, top_children
from lantern_jax.decoding.tree import DraftTree, resolve_tree


@dataclass(frozen=True)
class Drafter:
    """The small model of EAGLE: the target's next feature from a token and the feature before it.

    Attributes:
        init: (params, Prefix, slots, span, nodes) -> state. ``slots`` as in ``Target``; ``span`` is S, how many
            positions an ``absorb`` takes at most; ``nodes`` how many ``expand`` adds to a round at most.
        absorb: (params, state, features [G, B, S, D], tokens [B, S], count [B]) -> (state, logits [B, V]): takes
            in the target's features of newly committed positions, each with the token that followed; the logits
            are those of the position after the last of them. Starts a new, empty set of expanded nodes.
        expand: (params, state, tokens [B, M], parents [B, M]) -> (state, logits [B, M, V]): adds nodes below
            already expanded ones (0 = the root, then in order of expansion). The state keeps its shapes.
    """

    init: Callable[..., Any]
    absorb: Callable[..., Any]
    expand: Callable[..., Any]


@flax.struct.dataclass
class EagleState:
    """The drafter's state and what it has not absorbed yet.

    Attributes:
        drafter: as of the last ``absorb``, without any expanded node.
        features, tokens, count: what the last round committed, as in ``Outcome``.
    """

    drafter: Any
    features: Float[Array, "G B S D"]
    tokens: Int[Array, "B S"]
    count: Int[Array, " B"]


@cache
def eagle(drafter: Drafter, tree: DraftTree | str) -> Drafting:
    """The drafting of a static tree (EAGLE; LANTERN++): child number r of a node is rank r of what the coupling makes
    of log q.

    Args:
        tree: a DraftTree with at least one node below the root, or the name of a shipped one.

    Raises:
        ValueError: an unknown name, or a tree of the root alone.
    """
    tree = resolve_tree(tree)
    if not tree.max_depth:
        raise ValueError("the tree has no node below its root: leave the drafting out to decode plainly")
    expanded = sum(len(level) for level in tree.internal_levels[1:])

    def init(params, prefix, slots, span) -> EagleState:
        chain = span - 1 - tree.max_depth
        last = prefix.features[:, :, -1:]
        batch = last.shape[1]
        return EagleState(
            drafter=drafter.init(params, prefix, slots, span, chain + expanded),
            features=jnp.pad(last, ((0, 0), (0, 0), (0, span - 1), (0, 0))),
            tokens=jnp.zeros((batch, span), jnp.int32),
            count=jnp.ones(batch, jnp.int32),
        )

    def propose(params, state: EagleState, pending: Pending, draws, sampling):
        absorbed, logits = _absorb(drafter, params, state, pending)
        walked, logits, root = _walk_pending(drafter, params, absorbed, logits, pending)
        draft = _grow(tree, drafter, params, walked, logits, root, pending, draws, sampling)
        return draft, state.replace(drafter=absorbed)

    def observe(params, state: EagleState, outcome: Outcome) -> EagleState:
        return state.replace(features=outcome.features, tokens=outcome.tokens, count=outcome.count)

    return Drafting(init, propose, observe, tree.max_depth)


def _absorb(drafter: Drafter, params, state: EagleState, pending: Pending):
    """Takes in what the last round committed, each position with the token after it."""
    longest, span = pending.tokens.shape[1], state.tokens.shape[1]
    first = jnp.take_along_axis(pending.tokens, longest - pending.count[:, None], axis=1)
    following = jnp.roll(state.tokens, -1, axis=1)
    last = jnp.arange(span, dtype=jnp.int32)[None] == state.count[:, None] - 1
    following = jnp.where(last, first, following)
    return drafter.absorb(params, state.drafter, state.features, following, state.count)


def _walk_pending(drafter: Drafter, params, state, logits: Float[Array, "B V"], pending: Pending):
    """Expands the forced tokens after the first pending one: a chain whose features nobody knows yet.

    Returns the state, the logits after the root, and which expanded node [B] the root is.
    """
    longest = pending.tokens.shape[1]

    def step(i, carry):
        state, logits, root = carry
        where = jnp.clip(longest - pending.count + i, 0, longest - 1)
        token = jnp.take_along_axis(pending.tokens, where[:, None], axis=1)
        state, after = drafter.expand(params, state, token, root[:, None])
        there = i < pending.count
        return state, jnp.where(there[:, None], after[:, 0], logits), jnp.where(there, jnp.int32(i), root)

    # The counter is an int32 of ours: fori_loop's own would be of the default width.
    carry = (state, logits, jnp.zeros_like(pending.count))
    return lax.fori_loop(jnp.int32(1), jnp.int32(longest), step, carry) if longest > 1 else carry


def _grow(
    tree: DraftTree,
    drafter: Drafter,
    params,
    state,
    logits: Float[Array, "B V"],
    root: Int[Array, " B"],
    pending: Pending,
    draws,
    sampling: SamplingParams,
) -> Draft:
    """Fills the tree below the root, which is expanded node ``root`` of the drafter."""
    batch, longest = pending.tokens.shape
    tokens, log_q = [pending.tokens[:, -1:]], []
    # Of the level's nodes that have children: logits [B, M, V] and place among the expanded ones [B, M].
    logits, nodes, expanded = logits[:, None], root[:, None], longest
    for depth, internal in enumerate(tree.internal_levels):
        level = np.asarray(tree.levels[depth + 1])
        parent = np.searchsorted(np.asarray(internal), tree.parents[level])
        log_q.append(process_logits(logits, sampling))
        ranked = draws.perturb(log_q[-1], depth, np.asarray(internal))
        _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
        tokens.append(best[:, parent, tree.rank[level]])
        if depth + 1 < tree.max_depth:
            inner = np.searchsorted(level, np.asarray(tree.internal_levels[depth + 1]))
            state, logits = drafter.expand(params, state, tokens[-1][:, inner], nodes[:, parent[inner]])
            nodes = expanded + jnp.arange(len(inner), dtype=jnp.int32)
            nodes = jnp.broadcast_to(nodes[None], (batch, len(inner)))
            expanded += len(inner)
    return Draft(jnp.concatenate(tokens, axis=1), tree, jnp.concatenate(log_q, axis=1))
