"""Draft trees: derived arrays as literal matrices, shipped trees, bad input."""

import json

import numpy as np
import pytest
from hypothesis import given, settings

from lantern_jax.decoding.tree import DraftTree, named_tree, resolve_tree, tree_names
from tests.refused import refused

from .topologies import draft_trees

#        0
#     1     2
#   3   4   5      paths of the nodes 1.. : 0, 1, 00, 01, 10, 010
#       6
SMALL = DraftTree.from_paths([[1, 0], [0], [0, 1, 0], [1], [0, 1], [0, 0]])


def test_derived_arrays_are_those_of_the_picture():
    assert SMALL.paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))
    assert SMALL.num_nodes == 7 and SMALL.max_depth == 3 and SMALL.max_rank == 1
    np.testing.assert_array_equal(SMALL.parents, [-1, 0, 0, 1, 1, 2, 4])
    np.testing.assert_array_equal(SMALL.depth, [0, 1, 1, 2, 2, 2, 3])
    np.testing.assert_array_equal(SMALL.rank, [0, 0, 1, 0, 1, 0, 0])
    children = [[1, 2], [3, 4], [5, -1], [-1, -1], [6, -1], [-1, -1], [-1, -1]]
    np.testing.assert_array_equal(SMALL.children, children)
    assert SMALL.levels == ((0,), (1, 2), (3, 4, 5), (6,))
    assert SMALL.internal == (0, 1, 2, 4) and SMALL.internal_levels == ((0,), (1, 2), (4,))
    np.testing.assert_array_equal(SMALL.draft_rows, [0, 1, 2, -1, 3, -1, -1])
    paths = [[0, 0, 0, 0], [0, 1, 1, 1], [0, 2, 2, 2], [0, 1, 3, 3], [0, 1, 4, 4], [0, 2, 5, 5], [0, 1, 4, 6]]
    np.testing.assert_array_equal(SMALL.node_paths, paths)


def test_chain_and_empty_tree():
    np.testing.assert_array_equal(DraftTree.chain(2).ancestors.astype(int), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert DraftTree.chain(5) == named_tree("chain") and DraftTree.chain(0) == DraftTree.empty()
    empty = DraftTree.empty()
    assert (empty.num_nodes, empty.max_depth, empty.max_rank) == (1, 0, -1)
    assert empty.levels == ((0,),) and empty.internal == () and empty.internal_levels == ()
    np.testing.assert_array_equal(empty.children, [[-1]])


def test_a_tree_is_its_set_of_paths():
    same = DraftTree(tuple(reversed(SMALL.paths)))
    assert same == SMALL and hash(same) == hash(SMALL)
    assert DraftTree.chain(3) != SMALL
    with pytest.raises(AttributeError):
        SMALL.paths = ()
    with pytest.raises(ValueError, match="read-only"):
        SMALL.parents[0] = 1


@given(draft_trees(max_nodes=20))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_structure_of_any_tree(tree):
    paths = ((), *tree.paths)
    for node, path in enumerate(paths):
        assert tree.depth[node] == len(path)
        prefixes = {paths.index(path[:length]) for length in range(len(path) + 1)}
        assert set(np.flatnonzero(tree.ancestors[node])) == prefixes == set(tree.node_paths[node].tolist())
        below = [child for child in tree.children[node] if child >= 0]
        assert [paths[child] for child in below] == sorted(other for other in paths[1:] if other[:-1] == path)
    assert all(level == tuple(range(level[0], level[-1] + 1)) for level in tree.levels)


@pytest.mark.parametrize(("name", "nodes", "per_depth"), [
    ("naive_extend_57", 57, [5, 13, 16, 14, 9]), ("mc_sim_7b_63", 25, [4, 8, 8, 3, 2]), ("chain", 5, [1, 1, 1, 1, 1]),
])  # fmt: skip
def test_shipped_trees(name, nodes, per_depth):
    tree = named_tree(name)
    assert tree.num_nodes == nodes + 1
    assert [len(level) for level in tree.levels[1:]] == per_depth
    assert not tree.has_rank_gaps
    assert all(named_tree(other).max_depth >= 1 for other in tree_names())
    assert DraftTree.from_paths([[0], [2]]).has_rank_gaps and DraftTree.from_paths([[1]]).has_rank_gaps


@pytest.mark.parametrize(("paths", "message"), [
    ([[0], [0]], "appears twice"), ([[0, 0]], "has no parent"), ([[-1]], "ranks >= 0"), ([[0.5]], "ranks >= 0"),
    ([["a"]], "ranks >= 0"), ([[True]], "ranks >= 0"), ([[]], "ranks >= 0"), ([3], "not a list of paths"),
    (7, "not a list of paths"),
])  # fmt: skip
def test_bad_paths(paths, message):
    with refused(message):
        DraftTree.from_paths(paths)


def test_names_depths_and_files(tmp_path):
    with refused(r"unknown tree .oak.: choose one of .*naive_extend_57"):
        named_tree("oak")
    for depth in (-1, 2.5):
        with refused(f"chain depth {depth} is not valid: give a whole number from 0 to 64"):
            DraftTree.chain(depth)
    file = tmp_path / "tree.json"
    file.write_text(json.dumps([list(path) for path in SMALL.paths]))
    assert resolve_tree(file) == SMALL
    file.write_text("[[0], [0,")
    with refused(r"tree\.json is not JSON"):
        resolve_tree(file)
    with refused("is not a file"):
        resolve_tree(tmp_path / "missing.json")
