"""Drafting a tree with an EAGLE-style drafter (arXiv 2401.15077): level by level, each level in one pass.

Axes: G guidance rows, B batch, N tree nodes (root included), M nodes of a level, R pending tokens at most,
S = R - 1 + L positions, L = max depth + 1, V codes, D feature width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting.dynamic import grow_dynamic
from lantern_jax.decoding.echo import Echo, Memory, mixed, nothing, remember
from lantern_jax.decoding.protocols import Draft, Drafting, Outcome, Pending
from lantern_jax.decoding.sampling import process_logits, top_children
from lantern_jax.decoding.tree import DraftTree, DynamicTree, resolve_tree


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
        position, before: int32 [B], of the token that the root predicted in it, and the token before that root.
        memory: an ``echo.Memory`` of its nodes; None without echo.
    """

    drafter: Any
    features: Float[Array, "G B S D"]
    tokens: Int[Array, "B S"]
    count: Int[Array, " B"]
    position: Int[Array, " B"]
    before: Int[Array, " B"]
    memory: Memory | None


@cache
def eagle(drafter: Drafter, tree: DraftTree | DynamicTree | str, echo: Echo | None = None) -> Drafting:
    """The drafting of a tree: static (EAGLE; LANTERN++), child number r of a node being rank r of what the coupling
    makes of log q, or dynamic (EAGLE-2, DDD).

    Args:
        tree: a DraftTree with at least one node below the root, the name of a shipped one, or a DynamicTree.
        echo: mixes what the target said of the last round's nodes into log q; None leaves it out.

    Raises:
        ValueError: an unknown name, or a tree of the root alone.
    """
    tree = tree if isinstance(tree, DynamicTree) else resolve_tree(tree)
    if not tree.max_depth:
        raise ValueError("the tree has no node below its root: leave the drafting out to decode plainly")
    grow = grow_dynamic if isinstance(tree, DynamicTree) else grow_static

    def init(params, prefix, slots, span) -> EagleState:
        chain = span - 1 - tree.max_depth
        last = prefix.features[:, :, -1:]
        batch, memory = last.shape[1], None
        state = EagleState(
            drafter=drafter.init(params, prefix, slots, span, chain + sum(tree.expanded)),
            features=jnp.pad(last, ((0, 0), (0, 0), (0, span - 1), (0, 0))),
            tokens=jnp.zeros((batch, span), jnp.int32),
            count=jnp.ones(batch, jnp.int32),
            position=jnp.zeros(batch, jnp.int32),
            before=jnp.full(batch, -1, jnp.int32),
            memory=None,
        )
        if echo is not None:
            absorbed = jax.eval_shape(
                drafter.absorb, params, state.drafter, state.features, state.tokens, state.count
            )
            memory = nothing(batch, tree.num_nodes, absorbed[1].shape[-1])
        return state.replace(memory=memory)

    def propose(params, state: EagleState, pending: Pending, draws, sampling):
        absorbed, logits = absorb_committed(drafter, params, state, pending)
        walked, logits, root = walk_pending(drafter, params, absorbed, logits, pending)

        def expand(state, tokens, parents):
            return drafter.expand(params, state, tokens, parents)

        def log_q_below(logits, tokens, before, depth):
            log_q = process_logits(logits, sampling)
            if echo is None:
                return log_q
            return mixed(echo, state.memory, log_q, tokens, before, pending.position + depth)

        before = _before_root(state, pending)
        draft = grow(tree, expand, log_q_below, walked, logits, root, before, pending, draws)
        return draft, state.replace(drafter=absorbed, position=pending.position, before=before)

    def observe(params, state: EagleState, outcome: Outcome) -> EagleState:
        state = state.replace(features=outcome.features, tokens=outcome.tokens, count=outcome.count)
        if echo is None:
            return state
        return state.replace(memory=remember(outcome, state.position, state.before))

    return Drafting(init, propose, observe, tree.max_depth)


def absorb_committed(drafter: Drafter, params, state: EagleState, pending: Pending):
    """Takes in what the last round committed, each position with the token after it."""
    longest, span = pending.tokens.shape[1], state.tokens.shape[1]
    first = jnp.take_along_axis(pending.tokens, longest - pending.count[:, None], axis=1)
    following = jnp.roll(state.tokens, -1, axis=1)
    last = jnp.arange(span, dtype=jnp.int32)[None] == state.count[:, None] - 1
    following = jnp.where(last, first, following)
    return drafter.absorb(params, state.drafter, state.features, following, state.count)


def _before_root(state: EagleState, pending: Pending) -> Int[Array, " B"]:
    """The token before the root: a pending one, or the last that was committed."""
    last = jnp.take_along_axis(state.tokens, jnp.maximum(state.count - 1, 0)[:, None], axis=1)[:, 0]
    if pending.tokens.shape[1] == 1:
        return last
    return jnp.where(pending.count > 1, pending.tokens[:, -2], last)


def walk_pending(drafter: Drafter, params, state, logits: Float[Array, "B V"], pending: Pending):
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


def grow_static(
    tree: DraftTree,
    expand: Callable[..., tuple[Any, Float[Array, "B M V"]]],
    log_q_below: Callable[..., Float[Array, "B M V"]],
    state: Any,
    logits: Float[Array, "B V"],
    root: Int[Array, " B"],
    before: Int[Array, " B"],
    pending: Pending,
    draws: Any,
) -> Draft:
    """Fills the tree below the root; arguments as in ``grow_dynamic``."""
    batch, longest = pending.tokens.shape
    tokens, log_q = [pending.tokens[:, -1:]], []
    # Of the level's nodes that have children: logits [B, M, V], place among expanded ones, token, the one before.
    logits, nodes, expanded = logits[:, None], root[:, None], longest
    inner, before = tokens[-1], before[:, None]
    for depth, internal in enumerate(tree.internal_levels):
        level = np.asarray(tree.levels[depth + 1])
        parent = np.searchsorted(np.asarray(internal), tree.parents[level])
        log_q.append(log_q_below(logits, inner, before, depth))
        ranked = draws.perturb(log_q[-1], depth, np.asarray(internal))
        _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
        tokens.append(best[:, parent, tree.rank[level]])
        if depth + 1 < tree.max_depth:
            below = np.searchsorted(level, np.asarray(tree.internal_levels[depth + 1]))
            inner, before = tokens[-1][:, below], inner[:, parent[below]]
            state, logits = expand(state, inner, nodes[:, parent[below]])
            nodes = expanded + jnp.arange(len(below), dtype=jnp.int32)
            nodes = jnp.broadcast_to(nodes[None], (batch, len(below)))
            expanded += len(below)
    return Draft(jnp.concatenate(tokens, axis=1), tree, jnp.concatenate(log_q, axis=1))
