"""Trees for tests: random ones drawn by Hypothesis, and static ones as traced topologies, one per sequence."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from lantern_jax import Draft, Drafting, DraftTree
from lantern_jax.decoding.topology import Topology


@st.composite
def draft_trees(draw, max_nodes=10, max_rank=3):
    """Draws a random prefix-closed set of paths."""
    paths = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.sampled_from([(), *paths]))
        taken = [path[-1] for path in paths if path[:-1] == parent]
        rank = draw(st.integers(0, max_rank))
        if rank not in taken:
            paths.append((*parent, rank))
    return DraftTree.from_paths(paths)


def traced(tree: DraftTree, batch: int) -> Topology:
    """Turns the fields of a tree into arrays with a batch axis."""

    def rows(field):
        return jnp.asarray(np.broadcast_to(field[None], (batch, *field.shape)))

    fields = (tree.depth, tree.parents, tree.ancestors, tree.node_paths, tree.children)
    # A traced topology has a row of log q for every node.
    return Topology(*map(rows, fields), rows(np.arange(tree.num_nodes, dtype=np.int32)))


def traced_draft(draft: Draft) -> Draft:
    """Puts a static tree's draft on the traced topology; the leaves' rows of log q, which nothing may read, are NaN."""
    tree, log_q = draft.topology, draft.log_q
    if log_q is not None and not log_q.shape[1]:
        log_q = jnp.full((len(draft.tokens), 1, log_q.shape[2]), jnp.nan)
    elif log_q is not None:
        inner = jnp.asarray(tree.draft_rows >= 0)[None, :, None]
        log_q = jnp.where(inner, log_q[:, np.maximum(tree.draft_rows, 0)], jnp.nan)
    return Draft(draft.tokens, traced(tree, draft.tokens.shape[0]), log_q)


@cache
def traced_drafting(drafting: Drafting) -> Drafting:
    """Makes a static tree's drafting hand out its drafts on the traced topology."""

    def propose(params, state, pending, draws, sampling):
        draft, state = drafting.propose(params, state, pending, draws, sampling)
        return traced_draft(draft), state

    return dataclasses.replace(drafting, propose=propose)


@cache
def either(first: Drafting, second: Drafting) -> Drafting:
    """Makes a drafting that picks by the data: ``second``'s draft after an odd token; trees of one size and depth.

    Each sequence has its own tree, which changes from round to round.
    """

    def propose(params, state, pending, draws, sampling):
        odd = pending.tokens[:, -1] % 2 == 1
        drafts = [
            traced_draft(drafting.propose(params, state, pending, draws, sampling)[0])
            for drafting in (first, second)
        ]
        most = max(draft.topology.children.shape[-1] for draft in drafts)
        drafts = [draft.replace(topology=widened(draft.topology, most)) for draft in drafts]
        return jax.tree.map(
            lambda one, other: jnp.where(odd.reshape(-1, *(1,) * (one.ndim - 1)), other, one), *drafts
        ), state

    return dataclasses.replace(first, propose=propose)


def widened(topology: Topology, children: int) -> Topology:
    missing = children - topology.children.shape[-1]
    padding = ((0, 0), (0, 0), (0, missing))
    return topology.replace(children=jnp.pad(topology.children, padding, constant_values=-1))
