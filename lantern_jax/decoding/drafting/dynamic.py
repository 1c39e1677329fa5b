"""Growing a tree by what the drafter says: EAGLE-2 (arXiv 2406.16858), DDD (2409.00142), and ours on the shared noise.

The best nodes of a level are expanded; of everything drafted the best are kept. A child is never worth more than its
parent, so they are a tree. EAGLE-2 takes q for what a node is worth. Given the noise that draft and target share, q(x)
says little about a match, for x was picked by that noise too: what says it is the gap by which x leads in the race
log q + g, so there a node is worth softmax(beta (log q + g)).

Axes: B batch, F expanded nodes of a level, C children, Q drafted nodes, N kept nodes (root included), V codes.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.drafting.growing import Ground
from lantern_jax.decoding.gumbel import Greedy, SharedNoise
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.sampling import top_children
from lantern_jax.decoding.topology import topology_of
from lantern_jax.decoding.tree import DynamicTree
from lantern_jax.io.errors import LanternError


def grow_dynamic(tree: DynamicTree, ground: Ground) -> Draft:
    """Drafts ``tree`` below the root; the draft's nodes are point masses.

    Raises:
        ValueError: a tree ranked by gaps with draws of another coupling than ``Gumbel``.
    """
    batch, first = ground.pending.tokens.shape
    if tree.ranking == "gap" and not isinstance(ground.draws, SharedNoise | Greedy):
        raise LanternError(
            "ranking by gap needs the shared noise: use the gumbel coupling, or ranking probability"
        )
    tokens, before = ground.pending.tokens[:, -1:], ground.before[:, None]
    # Of the nodes that are expanded next: number among expanded ones, place in the pool of drafts, log of the worth.
    numbers, places, worth = (
        ground.root[:, None],
        jnp.full((batch, 1), -1, jnp.int32),
        jnp.zeros((batch, 1), jnp.float32),
    )
    state, logits, drafted, going = ground.state, ground.logits[:, None], [], jnp.ones(batch, bool)
    for depth in range(tree.depth):
        log_q = ground.log_q_below(logits, tokens, before, depth)
        values, ids = _children(tree, log_q, ground.draws, depth)
        values = worth[..., None] + jnp.where(going[:, None, None], values, -jnp.inf)
        drafted.append(
            tuple(x.reshape(batch, -1) for x in (ids, jnp.broadcast_to(places[..., None], ids.shape), values))
        )
        if depth + 1 < tree.depth:
            offset = sum(part[0].shape[1] for part in drafted[:-1])
            worth, best = lax.top_k(drafted[-1][2], tree.expanded[depth])
            places, parent = offset + best, best // tree.children
            before = jnp.take_along_axis(tokens, parent, axis=1)
            parents = jnp.take_along_axis(numbers, parent, axis=1)
            tokens = jnp.take_along_axis(drafted[-1][0], best, axis=1)
            state, logits = ground.expand(state, tokens, parents)
            width = tokens.shape[1]
            numbers = jnp.broadcast_to(first + jnp.arange(width, dtype=jnp.int32)[None], (batch, width))
            first += width
            if tree.threshold and depth + 1 in tree.checks:
                # The passes are made all the same, since nothing may branch on data; the nodes go to other places.
                going = going & (jnp.sum(jnp.exp(worth), axis=1) >= tree.threshold)
    ids, parents, values = (jnp.concatenate(parts, axis=1) for parts in zip(*drafted, strict=True))
    return _kept(tree, ground.pending.tokens[:, -1:], ids, parents, values)


def _children(tree: DynamicTree, log_q: Float[Array, "B F V"], draws, depth: int):
    """(log of what each child is worth, its token), best first, each [B, F, C]."""
    if tree.ranking == "probability":
        return top_children(log_q, tree.children)
    scores = jnp.float32(tree.sharpness) * draws.perturb(log_q, depth, None)
    values, ids = top_children(scores, tree.children)
    return values - jax.nn.logsumexp(scores, axis=-1, keepdims=True), ids


def _kept(
    tree: DynamicTree,
    root: Int[Array, "B 1"],
    ids: Int[Array, "B Q"],
    parents: Int[Array, "B Q"],
    values: Float[Array, "B Q"],
) -> Draft:
    """The best nodes in the order in which they were drafted, parents before children."""
    batch, pool = ids.shape
    # Of equal worth the earlier one: a parent, that is, before its child.
    _, best = lax.top_k(values, tree.nodes)
    rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
    kept = jnp.zeros((batch, pool), bool).at[rows, best].set(True)
    number = jnp.cumsum(kept, axis=1, dtype=jnp.int32)
    # Node n is the n-th that is kept; nodes that are not fall off the end.
    where = jnp.where(kept, number, tree.num_nodes)
    order = jnp.zeros((batch, tree.num_nodes), jnp.int32)
    order = order.at[rows, where].set(jnp.arange(pool, dtype=jnp.int32)[None], mode="drop")[:, 1:]
    above = jnp.take_along_axis(parents, order, axis=1)
    above = jnp.where(above < 0, 0, jnp.take_along_axis(number, jnp.maximum(above, 0), axis=1))
    above = jnp.concatenate([jnp.full((batch, 1), -1, jnp.int32), above], axis=1)
    tokens = jnp.concatenate([root, jnp.take_along_axis(ids, order, axis=1)], axis=1)
    return Draft(tokens, topology_of(above, tree.depth, tree.children))
