"""The shape of a round's draft: the same fields, either static in NumPy or traced with a batch axis.

Axes: B batch, N nodes (root included), L = max depth + 1, C children of the widest node.

A ``DraftTree`` is known when the program is compiled and is the same for every sequence. A ``Topology`` is made anew
in each round (EAGLE-2's dynamic trees) for each sequence. Node 0 is the root, parents come before their children, a
deeper node has a higher id, and siblings stand in draft order; ``take_nodes`` reads either.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from lantern_jax.decoding.record import Record
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.io.errors import LanternError

# A draft may hold a static tree, which is then part of its structure.
jax.tree_util.register_static(DraftTree)


class Topology(Record):
    """A traced topology; fields as in ``DraftTree``, with a batch axis in front.

    Attributes:
        depth: int32 [B, N], 0 for the root.
        parents: int32 [B, N], -1 for the root.
        ancestors: bool [B, N, N], [n, m] True when m is n or an ancestor of n.
        node_paths: int32 [B, N, L], ids from the root to a node, padded by repeating the node.
        children: int32 [B, N, C], ids of a node's children in draft order, padded with -1.
        draft_rows: int32 [B, N], a node's row of a draft's log q; -1 for none.
    """

    depth: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    ancestors: Bool[Array, "B N N"]
    node_paths: Int[Array, "B N L"]
    children: Int[Array, "B N C"]
    draft_rows: Int[Array, "B N"]

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, root included."""
        return self.depth.shape[-1]

    @property
    def max_depth(self) -> int:
        """Greatest depth that a node may have."""
        return self.node_paths.shape[-1] - 1


AnyTopology = DraftTree | Topology


def check_topology(topology: AnyTopology) -> None:
    """Raises LanternError for anything else, such as a list of paths."""
    if not isinstance(topology, AnyTopology):
        raise LanternError(
            f"a draft's topology is {type(topology).__name__}: give a tree, such as DraftTree.from_paths(paths)"
        )


def topology_of(parents: Int[Array, "B N"], max_depth: int, width: int) -> Topology:
    """Makes the topology of nodes from their parents, none of which has a row of log q; jittable.

    Args:
        parents: -1 for node 0, the root; a parent comes before its children, deeper nodes after shallower ones and
            siblings in draft order.
        max_depth: the greatest depth of a node.
        width: the most children of a node.

    Example:
        >>> make = jax.jit(lantern_jax.draftings.topology_of, static_argnums=(1, 2))
        >>> topology = make(jnp.array([[-1, 0, 0, 1]], jnp.int32), 2, 2)
        >>> topology.node_paths.tolist()
        [[[0, 0, 0], [0, 1, 1], [0, 2, 2], [0, 1, 3]]]
    """
    batch, nodes = parents.shape
    ids = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32)[None], parents.shape)
    ancestors = (parents[..., None] == ids[:, None]) | jnp.eye(nodes, dtype=bool)[None]
    # Each product reaches twice as far up.
    for _ in range((max_depth - 1).bit_length()):
        steps = ancestors.astype(jnp.float32)
        ancestors = steps @ steps > 0
    depth = jnp.sum(ancestors, axis=-1, dtype=jnp.int32) - 1
    levels = jnp.minimum(jnp.arange(max_depth + 1, dtype=jnp.int32)[None, None], depth[..., None])
    on_path = ancestors[:, :, None] & (depth[:, None, None] == levels[..., None])
    node_paths = jnp.sum(jnp.where(on_path, ids[:, None, None], 0), axis=-1, dtype=jnp.int32)

    related = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, None, :]
    place = jnp.sum(related & np.tri(nodes, k=-1, dtype=bool)[None], axis=-1, dtype=jnp.int32)
    # The root is no child: it falls off the end.
    row = jnp.where(parents >= 0, parents, nodes)
    children = jnp.full((batch, nodes, width), -1, jnp.int32)
    children = children.at[jnp.arange(batch, dtype=jnp.int32)[:, None], row, place].set(ids, mode="drop")
    return Topology(depth, parents, ancestors, node_paths, children, jnp.full_like(parents, -1))


def best_of_pool(
    worth: Float[Array, "B Q"], parents: Int[Array, "#B Q"], nodes: int, max_depth: int, width: int
) -> tuple[Int[Array, "B N-1"], Topology]:
    """Keeps the ``nodes`` best of a pool, in which parents come before their children; ties go to the earlier.

    Args:
        worth: no child is worth more than its parent.
        parents: places in the pool; -1 for the root, which is not in it.
        max_depth, width: as in ``topology_of``.

    Returns:
        the places of those that are kept, in the pool's order, and their topology, root included.
    """
    rows = jnp.arange(len(worth), dtype=jnp.int32)[:, None]
    kept = jnp.zeros(worth.shape, bool).at[rows, lax.top_k(worth, nodes)[1]].set(True)
    # From 1 on; places that are not kept fall off the end.
    number = jnp.cumsum(kept, axis=1, dtype=jnp.int32)
    places = jnp.arange(worth.shape[1], dtype=jnp.int32)[None]
    chosen = jnp.zeros((len(worth), nodes), jnp.int32)
    chosen = chosen.at[rows, jnp.where(kept, number - 1, nodes)].set(places, mode="drop")
    above = jnp.take_along_axis(jnp.broadcast_to(parents, worth.shape), chosen, axis=1)
    above = jnp.where(above < 0, 0, jnp.take_along_axis(number, jnp.maximum(above, 0), axis=1))
    above = jnp.pad(above, ((0, 0), (1, 0)), constant_values=-1)
    return chosen, topology_of(above, max_depth, width)


def take_nodes(values, nodes):
    """Takes ``values`` at ``nodes``, for values [N, ...] (NumPy) or [B, N, ...] and nodes [M] (NumPy) or [B, ...].

    NumPy arrays are static and shared by the batch; the result has a batch axis unless both are NumPy.
    """
    if isinstance(nodes, np.ndarray):
        return values[nodes] if isinstance(values, np.ndarray) else values[:, nodes]
    if isinstance(values, np.ndarray):
        return jnp.asarray(values)[nodes]
    batch = jnp.arange(nodes.shape[0], dtype=jnp.int32).reshape(-1, *(1,) * (nodes.ndim - 1))
    return values[batch, nodes]


def take_codes(values, nodes, ids: Int[Array, "B M K"]):
    """Takes ``values`` [B, X, V] at ``nodes`` [M] (NumPy) or [B, M] and ids [B, M] or [B, M, K]."""
    extra, nodes = (1,) * (ids.ndim - 2), with_batch(nodes, 2)
    batch = jnp.arange(len(ids), dtype=jnp.int32).reshape(-1, 1, *extra)
    return values[batch, nodes.reshape(*nodes.shape, *extra), ids]


def drafted(field):
    """Drops the root's entry of a topology's field [..., N]."""
    return field[..., 1:]


def rows_depth(topology: AnyTopology):
    """Returns the depth of each row of a draft's log q: int32 [I] (NumPy) or [B, N]."""
    if isinstance(topology, DraftTree):
        return topology.depth[list(topology.internal)]
    rows = topology.draft_rows
    batch = jnp.arange(rows.shape[0], dtype=jnp.int32)[:, None]
    place = jnp.where(rows >= 0, rows, rows.shape[1])
    return jnp.zeros_like(rows).at[batch, place].set(topology.depth, mode="drop")


def with_batch(field, ndim: int):
    """Returns a topology's field as an array of ``ndim`` axes, batch first; a static one has batch 1."""
    field = jnp.asarray(field)
    return field if field.ndim == ndim else field[None]
