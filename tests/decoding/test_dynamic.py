"""Trees grown by the drafter's confidence: their shape, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import named_tree
from lantern_jax.couplings import Greedy
from lantern_jax.decoding.drafting.growing import AtRoot, grow_dynamic
from lantern_jax.decoding.gumbel import SharedNoise
from lantern_jax.decoding.protocols import Pending
from lantern_jax.draftings import DynamicTree, topology_of
from tests.refused import refused

TREES = {
    "published": DynamicTree(9, 4, frontier=3, children=4),
    "gap": DynamicTree(9, 4, frontier=3, children=4, ranking="gap"),
    "ddd": DynamicTree(30, 4, frontier=3, children=4, threshold=0.22, checks=(2, 3)),
}
VOCAB = 16


# A narrow tree, a wide one and a deep one.
@pytest.mark.parametrize("name", ["chain", "medusa_2_7b_63", "demo_57"])
def test_a_topology_made_from_parents_is_the_static_tree(name):
    tree = named_tree(name)
    make = jax.jit(topology_of, static_argnums=(1, 2))
    made = make(jnp.asarray(tree.parents)[None], tree.max_depth, tree.children.shape[1])
    for field in ("depth", "ancestors", "node_paths", "children"):
        np.testing.assert_array_equal(getattr(made, field)[0], getattr(tree, field), field)
    assert made.num_nodes == tree.num_nodes and made.max_depth == tree.max_depth


def worths(scores: np.ndarray, tree: DynamicTree) -> np.ndarray:
    """Returns the log of each code's worth as a child, float64 [V]."""
    scores = scores * (tree.sharpness if tree.ranking == "gap" else 1)
    return scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()


def slow_tree(table: np.ndarray, noise: np.ndarray, root: int, tree: DynamicTree) -> set:
    """Returns the kept nodes as paths of tokens, by a plain reading of the algorithm over a bigram table."""
    log_q = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    frontier, pool = [((), 0.0)], []
    for depth in range(tree.depth):
        level = []
        for path, worth in frontier:
            scores = log_q[path[-1] if path else root]
            scores = scores + noise[depth] if tree.ranking == "gap" else scores
            values = worths(scores, tree)
            best = np.argsort(-values, kind="stable")[: tree.children]
            level += [((*path, int(code)), worth + values[code]) for code in best]
        pool += level
        frontier = sorted(level, key=lambda node: -node[1])[: tree.frontier]
        total = sum(np.exp(worth) for _, worth in frontier)
        if tree.threshold and depth + 1 in tree.checks and total < tree.threshold:
            break
    return {path for path, _ in sorted(pool, key=lambda node: -node[1])[: tree.nodes]}


@pytest.mark.parametrize("name", TREES)
def test_the_best_nodes_are_kept(name):
    tree, rng = TREES[name], np.random.default_rng(0)
    batch, table = 32, rng.normal(size=(VOCAB, VOCAB)).astype(np.float32) * 1.5
    noise = rng.gumbel(size=(batch, tree.depth + 1, VOCAB)).astype(np.float32)
    roots = rng.integers(VOCAB, size=batch).astype(np.int32)

    def expand(state, tokens, parents):
        return state, jnp.asarray(table)[tokens]

    def log_q_below(logits, history, depth):
        return jax.nn.log_softmax(logits, axis=-1)

    one = jnp.zeros(batch, jnp.int32)
    draws = SharedNoise(jnp.asarray(noise)) if tree.ranking == "gap" else Greedy()
    history = jnp.asarray(roots)[:, None] * jnp.array([[1, 0, 0]])
    pending = Pending(jnp.asarray(roots)[:, None], one + 1, one, history)

    @jax.jit
    def grow(draws):
        start = AtRoot(None, jnp.asarray(table)[roots], one)
        return grow_dynamic(tree, expand, log_q_below, start, pending, draws)

    draft = grow(draws)
    depths = []
    for row in range(batch):
        wanted = slow_tree(table.astype(np.float64), noise[row], roots[row], tree)
        topology = jax.tree.map(lambda field, row=row: np.asarray(field)[row], draft.topology)
        paths = topology.node_paths
        tokens = np.asarray(draft.tokens)[row]
        found = {tuple(tokens[paths[n][1 : topology.depth[n] + 1]]) for n in range(1, tree.num_nodes)}
        # Where a tree stops growing deeper, worthless nodes fill it up.
        assert found >= wanted if tree.threshold else found == wanted
        assert (topology.parents[1:] < np.arange(1, tree.num_nodes)).all()
        depths.append(max(map(len, wanted)))
    if tree.threshold:
        assert len(set(depths)) > 1, "every tree stops at the same depth: the threshold shows nothing"


def test_trees_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"nodes 40 of a dynamic tree is too many: .* draft 6"):
        DynamicTree(40, 2, frontier=3, children=2)
    with refused("checks 0 is not valid: give a whole number >= 1"):
        DynamicTree(9, 4, checks=(2, 0))
