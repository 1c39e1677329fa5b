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
# (logits [B, M, V], tokens of nodes, parents and grandparents [B, M, 3], depth) -> log q [B, M, V] of their children.
LogQ = Callable[..., Float[Array, "B M V"]]


class AtRoot(NamedTuple):
    """A drafter that has taken in a round's root.

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
    pending: Pending,
    draws: Any,
) -> Draft:
    """Fills ``tree`` below the root, the last token of ``pending``."""
    batch, expanded = pending.tokens.shape
    tokens, log_q, state = [pending.tokens[:, -1:]], [], start.state
    # The level's nodes with children: logits after them, their numbers, and their tokens with those before them.
    logits, numbers, history = start.logits[:, None], start.number[:, None], pending.history[:, None]
    for depth, internal in enumerate(tree.internal_levels):
        level = np.asarray(tree.levels[depth + 1])
        parent = np.searchsorted(np.asarray(internal), tree.parents[level])
        log_q.append(log_q_below(logits, history, depth))
        ranked = draws.perturb(log_q[-1], depth, np.asarray(internal))
        _, best = top_children(ranked, int(tree.rank[level].max()) + 1)
        tokens.append(best[:, parent, tree.rank[level]])
        if depth + 1 < tree.max_depth:
            below = np.searchsorted(level, np.asarray(tree.internal_levels[depth + 1]))
            inner = tokens[-1][:, below]
            history = extended(history[:, parent[below]], inner)
            state, logits = expand(state, inner, numbers[:, parent[below]])
            numbers = expanded_numbers(expanded, batch, len(below))
            expanded += len(below)
    return Draft(jnp.concatenate(tokens, axis=1), tree, jnp.concatenate(log_q, axis=1))


def expanded_numbers(first: int, batch: int, count: int) -> Int[Array, "B M"]:
    """Returns the numbers of ``count`` nodes expanded together, from ``first`` on."""
    return jnp.broadcast_to((first + jnp.arange(count, dtype=jnp.int32))[None], (batch, count))


def extended(history: Int[Array, "B M 3"], tokens: Int[Array, "B M"]) -> Int[Array, "B M 3"]:
    """Returns the last tokens of nodes, given the ``history`` of their parents."""
    return jnp.concatenate([tokens[..., None], history[..., :-1]], axis=-1)
