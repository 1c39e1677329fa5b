"""What trees grow from, and static ones.

Axes: B batch, M nodes of a level that are expanded, V codes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.protocols import Draft, Pending
from lantern_jax.decoding.sampling import top_children
from lantern_jax.decoding.tree import DraftTree


class Ground(NamedTuple):
    """Where a round's tree begins, and how it gets deeper.

    Attributes:
        expand: (state, tokens [B, M], parents [B, M]) -> (state, logits [B, M, V]), of a drafter.
        log_q_below: (logits [B, M, V], tokens [B, M], the tokens before them [B, M], depth) -> log q [B, M, V] of the
            nodes' children.
        state, logits: the drafter's after the root.
        root: int32 [B], the root's number among expanded nodes.
        before: int32 [B], the token before the root.
        pending: as in ``Drafting.propose``; its last token is the root.
        draws: of the round.
    """

    expand: Callable[..., tuple[Any, Float[Array, "B M V"]]]
    log_q_below: Callable[..., Float[Array, "B M V"]]
    state: Any
    logits: Float[Array, "B V"]
    root: Int[Array, " B"]
    before: Int[Array, " B"]
    pending: Pending
    draws: Any


def grow_static(tree: DraftTree, ground: Ground) -> Draft:
    """Fills ``tree`` below the root."""
    batch, longest = ground.pending.tokens.shape
    tokens, log_q, state = [ground.pending.tokens[:, -1:]], [], ground.state
    # Of the level's nodes that have children: logits [B, M, V], place among expanded ones, token, the one before.
    logits, nodes, expanded = ground.logits[:, None], ground.root[:, None], longest
    inner, before = tokens[-1], ground.before[:, None]
    for depth, internal in enumerate(tree.internal_levels):
        level = np.asarray(tree.levels[depth + 1])
        parent = np.searchsorted(np.asarray(internal), tree.parents[level])
        log_q.append(ground.log_q_below(logits, inner, before, depth))
        ranked = ground.draws.perturb(log_q[-1], depth, np.asarray(internal))
        _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
        tokens.append(best[:, parent, tree.rank[level]])
        if depth + 1 < tree.max_depth:
            below = np.searchsorted(level, np.asarray(tree.internal_levels[depth + 1]))
            inner, before = tokens[-1][:, below], inner[:, parent[below]]
            state, logits = ground.expand(state, inner, nodes[:, parent[below]])
            nodes = expanded + jnp.arange(len(below), dtype=jnp.int32)
            nodes = jnp.broadcast_to(nodes[None], (batch, len(below)))
            expanded += len(below)
    return Draft(jnp.concatenate(tokens, axis=1), tree, jnp.concatenate(log_q, axis=1))
