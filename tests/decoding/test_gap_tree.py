"""Gap trees: the pool, the nodes that are kept, and their topology."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.gap_tree import BRANCHES, FRONT, TAIL, gap_draft
from lantern_jax.draftings import GapTree

VOCAB = 9


def test_pool_paths_leave_the_spine_freely_in_front_and_once_behind():
    pool = GapTree(6, 8).pool
    paths = {()}
    ranks = [()]
    for node in range(len(pool.rank)):
        parent = pool.parents[node]
        path = (*ranks[parent + 1], int(pool.rank[node]))
        ranks.append(path)
        paths.add(path)
        assert pool.place[node] == len(path) - 1
        assert pool.on_spine[node] == (not any(path))
        chosen = pool.ranks[node].reshape(6, BRANCHES)
        assert [int(row.argmax()) for row in chosen[: len(path)]] == list(path) and chosen.sum() == len(path)
    assert len(paths) == len(ranks), "a node appears twice"
    wanted = {
        path
        for depth in range(1, 7)
        for path in np.ndindex(*(BRANCHES,) * depth)
        if sum(map(bool, path[FRONT:])) <= (not any(path[:FRONT]))
    }
    assert TAIL > 6 and paths - {()} == wanted


@pytest.mark.parametrize(("tree", "vocab"), [(GapTree(5, 9), VOCAB), (GapTree(12, 20, 1.0), VOCAB)])
def test_the_best_nodes_are_kept_and_the_spine(tree, vocab):
    """Recomputed from the definition over all nodes of the pool."""
    rng, batch = np.random.default_rng(0), 8
    ranked = rng.gumbel(size=(batch, tree.window, vocab)).astype(np.float32) * 2
    root = jnp.full((batch, 1), 7, jnp.int32)
    draft = jax.jit(gap_draft, static_argnums=0)(tree, root, jnp.asarray(ranked))
    values = np.log(np.asarray(jax.nn.softmax(tree.sharpness * ranked, axis=-1), np.float64))
    order = np.argsort(-ranked, axis=-1)
    pool = tree.pool
    for row in range(batch):
        worth, tokens, paths = [], [], [()]
        for node in range(len(pool.rank)):
            parent, rank = pool.parents[node], pool.rank[node]
            above = (0.0, ()) if parent < 0 else (worth[parent], tokens[parent])
            code = int(order[row, pool.place[node], rank]) if rank < vocab else None
            own = -1e4 if code is None else min(values[row, pool.place[node], code], -1e-3)
            worth.append(above[0] + own)
            tokens.append((*above[1], code))
            paths.append(tokens[-1])
        spine = [node for node in range(len(worth)) if pool.on_spine[node] and pool.place[node] < tree.spine]
        others = sorted(set(range(len(worth))) - set(spine), key=lambda node: -worth[node])
        wanted = {tokens[node] for node in spine + others[: tree.nodes - len(spine)]}
        topology = jax.tree.map(lambda field, row=row: np.asarray(field)[row], draft.topology)
        drafted = np.asarray(draft.tokens)[row]
        found = {
            tuple(drafted[topology.node_paths[n][1 : topology.depth[n] + 1]])
            for n in range(1, tree.num_nodes)
        }
        assert found == wanted and len(found) == tree.nodes


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 4), "window 0 is not valid: give a whole number from 1 to 64"),
        ((1, 9), "a gap tree of 1 places has 4 nodes: give no more, not 9"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        GapTree(*sizes)
