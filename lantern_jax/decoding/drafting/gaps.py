"""Drafting a gap tree (``decoding.gap_tree``): the best nodes of its pool, by one product and one top-k.

Axes: B batch, W window, K guesses for a place, P nodes of the pool, N nodes (root included), L = W + 1, V codes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.gap_tree import BRANCHES, GapTree
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.sampling import top_children
from lantern_jax.decoding.topology import Topology, numbered, take_nodes

# Bounds of a guess's log worth: none is certain, so a child is always worth less than its parent, however sums are
# rounded; and none counts for so little that the rounding would show.
_LEAST, _MOST = -20.0, -1e-3


def gap_draft(tree: GapTree, root: Int[Array, "B 1"], ranked: Float[Array, "B W V"]) -> Draft:
    """Drafts the tree as point masses; ``ranked`` is log q' + g."""
    pool, branches = tree.pool, min(BRANCHES, ranked.shape[-1])
    scores = jnp.float32(tree.sharpness) * ranked
    values, ids = top_children(scores, branches)
    values = values - jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    # Without a fourth code, no node may stand for it.
    missing = ((0, 0), (0, 0), (0, BRANCHES - branches))
    values = jnp.pad(jnp.clip(values, _LEAST, _MOST), missing, constant_values=-1e4)
    worth = jnp.einsum(
        "bp,np->bn", values.reshape(len(root), -1), jnp.asarray(pool.ranks), precision=lax.Precision.HIGHEST
    )
    kept_first = pool.on_spine & (pool.depth <= tree.spine)
    worth = jnp.where(jnp.asarray(kept_first)[None], jnp.float32(1), worth)
    # Ties go to the earlier node.
    number, chosen = numbered(lax.top_k(worth, tree.nodes)[1], worth.shape[1])
    codes = jnp.pad(ids, missing).reshape(len(root), -1)
    codes = jnp.take_along_axis(codes, jnp.asarray(pool.place * BRANCHES + pool.rank)[chosen], axis=1)
    return Draft(jnp.concatenate([root, codes], axis=1), _topology(tree, number, chosen))


def _topology(tree: GapTree, number: Int[Array, "B P"], chosen: Int[Array, "B N-1"]) -> Topology:
    """Returns the topology of the pool's ``chosen`` nodes; the ancestors of each are chosen too."""
    pool, root = tree.pool, jnp.full((len(chosen), 1), -1, jnp.int32)
    ids = jnp.arange(tree.num_nodes, dtype=jnp.int32)
    is_chosen = jnp.diff(number, axis=1, prepend=0) > 0
    # The last entry is the root's, which the pool numbers -1.
    number, chosen = (jnp.concatenate(parts, axis=1) for parts in ((number, 1 + root), (root, chosen)))

    def of_chosen(table: np.ndarray, of_root: int) -> Int[Array, "B N columns"]:
        """Returns a table's rows [P, columns] for each node; the root's is filled with ``of_root``."""
        return jnp.asarray(np.concatenate([table, np.full_like(table[:1], of_root)]))[chosen]

    def numbers(nodes: Int[Array, "B N columns"]) -> Int[Array, "B N columns"]:
        """Returns the numbers of the pool's nodes."""
        return take_nodes(number, nodes % number.shape[1])

    node_paths = numbers(of_chosen(pool.paths, -1))
    children = jnp.asarray(pool.children)[chosen]
    there = (children >= 0) & take_nodes(is_chosen, jnp.maximum(children, 0))
    return Topology(
        depth=of_chosen(pool.depth[:, None], 0)[..., 0],
        parents=numbers(of_chosen(pool.parents[:, None], -1))[..., 0].at[:, 0].set(-1),
        ancestors=jnp.any(node_paths[..., None] == ids[None, None, None], axis=2),
        node_paths=node_paths,
        children=jnp.where(there, numbers(jnp.maximum(children, 0)), -1),
        draft_rows=jnp.full((len(chosen), tree.num_nodes), -1, jnp.int32),
    )
