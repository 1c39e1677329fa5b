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
from lantern_jax.decoding.topology import Topology

# Bounds of a guess's log worth: none is certain, so a child is always worth less than its parent, however sums are
# rounded; and none counts for so little that the rounding would show.
_LEAST, _MOST = -20.0, -1e-3


def gap_draft(tree: GapTree, root: Int[Array, "B 1"], ranked: Float[Array, "B W V"]) -> Draft:
    """Drafts the tree as point masses; ``ranked`` is log q' + g."""
    pool, branches = tree.pool, min(BRANCHES, ranked.shape[-1])
    scores = jnp.float32(tree.sharpness) * ranked
    values, ids = top_children(scores, branches)
    values = values - jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    # Without a fourth code there is no node for it.
    missing = ((0, 0), (0, 0), (0, BRANCHES - branches))
    values = jnp.pad(jnp.clip(values, _LEAST, _MOST), missing, constant_values=-1e4)
    worth = jnp.einsum(
        "bp,np->bn", values.reshape(len(root), -1), jnp.asarray(pool.ranks), precision=lax.Precision.HIGHEST
    )
    kept_first = pool.on_spine & (pool.depth <= tree.spine)
    worth = jnp.where(jnp.asarray(kept_first)[None], jnp.float32(1), worth)
    # In the pool's order parents come before children; ties go to the earlier node.
    chosen = jnp.sort(lax.top_k(worth, tree.nodes)[1], axis=1)
    codes = jnp.pad(ids, missing).reshape(len(root), -1)
    codes = jnp.take_along_axis(codes, jnp.asarray(pool.place * BRANCHES + pool.rank)[chosen], axis=1)
    return Draft(jnp.concatenate([root, codes], axis=1), _topology(tree, chosen))


def _topology(tree: GapTree, chosen: Int[Array, "B N-1"]) -> Topology:
    """Returns the topology of nodes of the pool, which stand in its order."""
    pool, batch = tree.pool, jnp.arange(len(chosen), dtype=jnp.int32)[:, None]
    ids = jnp.arange(tree.num_nodes, dtype=jnp.int32)
    # The last entry is the root's, which the pool numbers -1.
    number = jnp.full((len(chosen), len(pool.depth) + 1), -1, jnp.int32)
    number = number.at[batch, chosen].set(ids[None, 1:], unique_indices=True).at[:, -1].set(0)
    chosen = jnp.concatenate([jnp.full((len(chosen), 1), -1, jnp.int32), chosen], axis=1)

    def numbers(table: np.ndarray, of_root: np.ndarray) -> Int[Array, "B N columns"]:
        """Returns the numbers of the pool's nodes that stand in a table [P, columns], by chosen node."""
        table = jnp.asarray(np.concatenate([table, of_root[None]]))[chosen]
        found = jnp.take_along_axis(number, table.reshape(len(chosen), -1) % number.shape[1], axis=1)
        return found.reshape(table.shape)

    node_paths = numbers(pool.paths, np.full(tree.max_depth + 1, -1, np.int32))
    children = jnp.asarray(pool.children)[chosen]
    there = jnp.take_along_axis(number, jnp.maximum(children, 0).reshape(len(chosen), -1), axis=1).reshape(
        children.shape
    )
    parents = numbers(pool.parents[:, None], np.full(1, -1, np.int32))[..., 0]
    return Topology(
        depth=jnp.asarray(np.append(pool.depth, 0))[chosen],
        parents=parents.at[:, 0].set(-1),
        ancestors=jnp.any(node_paths[..., None] == ids[None, None, None], axis=2),
        node_paths=node_paths,
        children=jnp.where(children < 0, -1, there),
        draft_rows=jnp.full((len(chosen), tree.num_nodes), -1, jnp.int32),
    )
