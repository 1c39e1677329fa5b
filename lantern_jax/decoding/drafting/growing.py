"""Filling a static tree with a drafter's guesses, level by level.

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

# (drafter's state, tokens [B, M], numbers of their parents among expanded nodes [B, M]) -> (state, logits [B, M, V]).
Expand = Callable[..., tuple[Any, Float[Array, "B M V"]]]
# (logits [B, M, V], tokens [B, M], the tokens before them [B, M], depth) -> log q [B, M, V] of the nodes' children.
LogQ = Callable[..., Float[Array, "B M V"]]


class AtRoot(NamedTuple):
    """A drafter after a round's root.

    Attributes:
        state: the drafter's.
        logits: float32 [B, V], of the token after the root.
        number: int32 [B], the root's number among expanded nodes.
    """

    state: Any
    logits: Float[Array, "B V"]
    number: Int[Array, " B"]


def grow_static(
    tree: DraftTree,
    expand: Expand,
    log_q_below: LogQ,
    start: AtRoot,
    before: Int[Array, " B"],
    pending: Pending,
    draws: Any,
) -> Draft:
    """Fills ``tree`` below the root, the last token of ``pending``; ``before`` is the token before it."""
    batch, expanded = pending.tokens.shape
    tokens, log_q, state = [pending.tokens[:, -1:]], [], start.state
    # The level's nodes with children: logits after them, their numbers, their tokens, and the tokens before those.
    logits, numbers, inner, before = start.logits[:, None], start.number[:, None], tokens[-1], before[:, None]
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
            state, logits = expand(state, inner, numbers[:, parent[below]])
            numbers = expanded_numbers(expanded, batch, len(below))
            expanded += len(below)
    return Draft(jnp.concatenate(tokens, axis=1), tree, jnp.concatenate(log_q, axis=1))


def expanded_numbers(first: int, batch: int, count: int) -> Int[Array, "B M"]:
    """Returns the numbers of ``count`` nodes expanded together, from ``first`` on."""
    return jnp.broadcast_to((first + jnp.arange(count, dtype=jnp.int32))[None], (batch, count))
