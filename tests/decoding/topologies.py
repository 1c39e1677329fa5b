"""Static trees as traced topologies, one for each sequence."""

import dataclasses
from functools import cache

import jax.numpy as jnp
import numpy as np

from lantern_jax.decoding.protocols import Drafting
from lantern_jax.decoding.topology import Topology
from lantern_jax.decoding.tree import DraftTree


def traced(tree: DraftTree, batch: int) -> Topology:
    """Makes the fields of a tree arrays with a batch axis."""

    def rows(field):
        return jnp.asarray(np.broadcast_to(field[None], (batch, *field.shape)))

    fields = (tree.depth, tree.parents, tree.ancestors, tree.node_paths, tree.children)
    # A traced topology has a row of log q for every node.
    return Topology(*map(rows, fields), rows(np.arange(tree.num_nodes, dtype=np.int32)))


@cache
def traced_drafting(drafting: Drafting, tree: DraftTree) -> Drafting:
    """Makes a static tree's drafting hand out its drafts on the traced topology."""

    def propose(params, state, pending, draws, sampling):
        draft, state = drafting.propose(params, state, pending, draws, sampling)
        batch = draft.tokens.shape[0]
        log_q = draft.log_q
        if log_q is not None:
            # A row for every node; nobody may read those of the leaves.
            log_q = jnp.where(
                jnp.asarray(tree.draft_rows >= 0)[None, :, None],
                log_q[:, np.maximum(tree.draft_rows, 0)],
                jnp.nan,
            )
        return draft.replace(topology=traced(tree, batch), log_q=log_q), state

    return dataclasses.replace(drafting, propose=propose)
