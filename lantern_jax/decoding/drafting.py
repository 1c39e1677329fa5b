"""Drafting a static tree: the drafter expands it level by level, every level in one pass.

Axes: B batch, N tree nodes (root included), I internal nodes (those with children), M nodes of a level, K children
of the widest node, L = max depth + 1, V codes.
"""

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from lantern_jax.decoding.protocols import Drafter
from lantern_jax.decoding.sampling import SamplingParams, draft_noise, process_logits, top_children
from lantern_jax.decoding.tree import DraftTree


@flax.struct.dataclass
class Draft:
    """A filled tree.

    Attributes:
        tokens: int32 [B, N], node 0 the root.
        log_probs: float32 [B, I, V], the drafter's distribution q at each internal node (`tree.internal`
            order), or None where verification does not need it.
    """

    tokens: Int[Array, "B N"]
    log_probs: Float[Array, "B I V"] | None


def draft_tree(
    tree: DraftTree,
    drafter: Drafter,
    drafter_params,
    state,
    logits: Float[Array, "B V"],
    root: Int[Array, " B"],
    *,
    sampling: SamplingParams,
    noise: Float[Array, "B L V"] | None = None,
    streams: tuple[Key[Array, " B"], Int[Array, " B"], Int[Array, " B"]] | None = None,
    root_node: Int[Array, " B"] | None = None,
    num_expanded: int = 1,
) -> Draft:
    """Fills a static tree (EAGLE; LANTERN++): child number r of a node is rank r of log q + noise.

    Args:
        tree: at least one node below the root.
        state, logits: the drafter after taking in everything up to the root.
        root: int32 [B], the root's token.
        sampling: the target's knobs; q is what they make of the drafter's logits.
        noise: the shared noise (coupling `gumbel`), row d that of the token after a node at depth d.
        streams: (keys, positions, rounds) for draws without replacement from q (coupling `rejection`), where
            positions are those of the token that the root predicts. Exactly one of noise and streams is given.
        root_node, num_expanded: which of the drafter's ``num_expanded`` nodes is the root; more than one
            only after forced tokens.
    """
    if root_node is None:
        root_node = jnp.zeros(root.shape, jnp.int32)
    tokens, log_probs = [root[:, None]], []
    logits, nodes = (
        logits[:, None],
        root_node[:, None],
    )  # Of the level's internal nodes, [B, M, V] and [B, M].
    for depth, internal in enumerate(tree.internal_levels):
        level = np.asarray(tree.levels[depth + 1])
        parent = np.searchsorted(np.asarray(internal), tree.parents[level])
        log_q = process_logits(logits, sampling)
        if streams is None:
            scores = log_q + noise[:, depth][:, None]
        else:
            log_probs.append(log_q)
            scores = log_q + draft_noise(*streams, np.asarray(internal), log_q.shape[-1], sampling)
        _, best = top_children(scores, int(tree.rank[level].max()) + 1)
        tokens.append(best[:, parent, tree.rank[level]])
        if depth + 1 < tree.max_depth:
            inner = np.searchsorted(level, np.asarray(tree.internal_levels[depth + 1]))
            state, logits = drafter.expand(
                drafter_params, state, tokens[-1][:, inner], nodes[:, parent[inner]]
            )
            nodes = num_expanded + jnp.arange(len(inner), dtype=jnp.int32)
            nodes = jnp.broadcast_to(nodes[None], (root.shape[0], len(inner)))
            num_expanded += len(inner)
    return Draft(
        tokens=jnp.concatenate(tokens, axis=1),
        log_probs=jnp.concatenate(log_probs, axis=1) if log_probs else None,
    )
