"""Draft trees: static ones, from which everything is derived once in NumPy, and the settings of dynamic ones.

Axes: N nodes (root included), C children of the widest node.

A tree is the set of its nodes' child-rank paths: ``(0, 2)`` is the third-best child of the root's best child. Node 0
is the root (the last sampled token, without a path); the others follow level by level, in lexicographic order within a
level, so a level is a contiguous range of ids in depth-first order. Needs no JAX.
"""

import itertools
import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lantern_jax.decoding.fields import Made, Range, check_count
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.io.files import read_json

# A block's mask has nodes x nodes entries, and every level is compiled: trees that pay off are far smaller.
MOST_NODES, MOST_DEPTH = 4096, 64
_LARGEST_FILE = 10**6


class GuessTree:
    """What static, dynamic and gap trees have in common.

    Attributes:
        nodes: number of nodes, the root not counted.
        max_depth: the greatest depth of a node; 0 for the root alone.
        max_rank: the largest child rank; -1 for the root alone.
        expanded: how many nodes a drafter expands at each level from 1 to max_depth - 1.
        is_static: whether all rounds have the same nodes, with the guesses of ranks that are known beforehand.
    """

    nodes: int
    max_depth: int
    max_rank: int
    expanded: tuple[int, ...] = ()
    is_static: ClassVar[bool] = False

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, root included."""
        return self.nodes + 1


@dataclass(frozen=True)
class DraftTree(GuessTree):
    """A static draft tree; its sorted ``paths`` decide hash and equality.

    Args:
        paths: child-rank paths of all nodes but the root, in any order. Every prefix of a path must be a path too;
            ranks may have gaps (``(0,), (2,)``: the best and the third-best child).

    Raises:
        LanternError: an empty, repeated, negative, fractional or orphaned path, over 4,096 paths, or over 64 levels.

    Example:
        >>> tree = lantern_jax.DraftTree.from_paths([[0], [1], [0, 0]])
        >>> tree.num_nodes, tree.max_depth, tree.parents.tolist()
        (4, 2, [-1, 0, 0, 1])
        >>> tree.ancestors.astype(int)
        array([[1, 0, 0, 0],
               [1, 1, 0, 0],
               [1, 0, 1, 0],
               [1, 1, 0, 1]])
    """

    paths: tuple[tuple[int, ...], ...]
    is_static: ClassVar[bool] = True

    def __post_init__(self):
        object.__setattr__(self, "paths", _checked_paths(self.paths))

    def __str__(self) -> str:
        """Writes it as text: its name if it has one, else the paths of its leaves, ``0.0+1``."""
        name = next((name for name, paths in _shipped().items() if paths == self.paths), None)
        inner = {path[:-1] for path in self.paths}
        return name or "+".join(".".join(map(str, path)) for path in self.paths if path not in inner)

    @classmethod
    def from_paths(cls, paths) -> "DraftTree":
        """Builds a tree from any iterable of paths (lists, as read from JSON, are fine)."""
        return cls(paths)

    @classmethod
    def empty(cls) -> "DraftTree":
        """Makes a tree of the root alone: a round is then one step of plain decoding."""
        return cls(())

    @classmethod
    def chain(cls, depth: int) -> "DraftTree":
        """Makes a single path of ``depth`` best children."""
        Range(int, high=MOST_DEPTH).check("chain depth", depth)
        return cls(tuple((0,) * length for length in range(1, depth + 1)))

    @classmethod
    def window(cls, depth: int, branches: int = 1, levels: int = 0) -> "DraftTree":
        """Makes a chain whose first ``levels`` levels are bushy: every node there has ``branches`` children.

        Raises LanternError for a number out of range, or more than 4,096 nodes.
        """
        depth = check_count("window", depth, MOST_DEPTH)
        branches = check_count("branches", branches, MOST_NODES)
        Range(int, high=depth, note="no more than the window").check("levels", levels)
        # Counted before any node is made: eight levels of eight branches are 19 million.
        nodes = sum(branches**level for level in range(1, levels + 1)) + depth - levels
        if nodes > MOST_NODES:
            raise LanternError(
                f"branches {branches} at {levels} levels of window {depth} are more than {MOST_NODES} nodes: give fewer"
            )
        ranks = [range(branches)] * levels
        bushy = (path for level in range(levels) for path in itertools.product(*ranks[: level + 1]))
        return cls((*bushy, *((0,) * length for length in range(levels + 1, depth + 1))))

    @property
    def nodes(self) -> int:
        """Number of nodes, the root not counted."""
        return len(self.paths)

    @property
    def max_depth(self) -> int:
        return len(self.paths[-1]) if self.paths else 0

    @cached_property
    def depth(self) -> np.ndarray:
        """int32 [N], 0 for the root."""
        return _frozen([0, *(len(path) for path in self.paths)])

    @cached_property
    def parents(self) -> np.ndarray:
        """int32 [N], -1 for the root."""
        ids = {path: node for node, path in enumerate(((), *self.paths))}
        return _frozen([-1, *(ids[path[:-1]] for path in self.paths)])

    @cached_property
    def rank(self) -> np.ndarray:
        """int32 [N], a node's rank among its parent's drafts (0 = best); 0 for the root."""
        return _frozen([0, *(path[-1] for path in self.paths)])

    @cached_property
    def ancestors(self) -> np.ndarray:
        """bool [N, N], the block's attention mask: [n, m] is True when m is n or an ancestor of n."""
        mask = np.eye(self.num_nodes, dtype=bool)
        for node in range(1, self.num_nodes):
            mask[node] |= mask[self.parents[node]]
        return _frozen(mask)

    @cached_property
    def children(self) -> np.ndarray:
        """int32 [N, C]: ids of a node's children in rank order, padded with -1; C >= 1."""
        lists = [np.flatnonzero(self.parents == node) for node in range(self.num_nodes)]
        table = np.full((self.num_nodes, max(1, *(len(ids) for ids in lists), 1)), -1, np.int32)
        for node, ids in enumerate(lists):
            table[node, : len(ids)] = ids
        return _frozen(table)

    @cached_property
    def node_paths(self) -> np.ndarray:
        """int32 [N, max_depth + 1]: ids from the root to a node, padded by repeating the node."""
        ids = {path: node for node, path in enumerate(((), *self.paths))}
        depths = range(self.max_depth + 1)
        return _frozen([[ids[path[:depth]] for depth in depths] for path in ids])

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Node ids by depth, the root's level first; each a contiguous range."""
        depths = range(self.max_depth + 1)
        return tuple(tuple(np.flatnonzero(self.depth == depth).tolist()) for depth in depths)

    @cached_property
    def internal(self) -> tuple[int, ...]:
        """Ids of the nodes that have children, in node order: the rows that drafting fills."""
        return tuple(np.flatnonzero(self.children[:, 0] >= 0).tolist())

    @cached_property
    def internal_levels(self) -> tuple[tuple[int, ...], ...]:
        """``internal`` by depth, one tuple for each of the max_depth levels that have children."""
        levels = self.levels[: self.max_depth]
        return tuple(tuple(node for node in level if node in self.internal) for level in levels)

    @cached_property
    def draft_rows(self) -> np.ndarray:
        """int32 [N]: place of a node in ``internal``, which is its row in a draft's log q; -1 for leaves."""
        index = np.full(self.num_nodes, -1, np.int32)
        index[list(self.internal)] = np.arange(len(self.internal))
        return _frozen(index)

    @property
    def expanded(self) -> tuple[int, ...]:
        return tuple(len(level) for level in self.internal_levels[1:])

    @property
    def max_rank(self) -> int:
        return max((path[-1] for path in self.paths), default=-1)

    @property
    def is_chain(self) -> bool:
        """Whether it is a single path."""
        return self.num_nodes == self.max_depth + 1

    @property
    def has_rank_gaps(self) -> bool:
        """Whether some node's children do not have exactly the ranks 0, 1, 2, ..."""
        known = set(self.paths)
        return any(path[-1] > 0 and (*path[:-1], path[-1] - 1) not in known for path in self.paths)


def tree_names() -> tuple[str, ...]:
    """Returns the names of the trees shipped with the package.

    Example:
        >>> lantern_jax.draftings.tree_names()[:3]
        ('naive_extend_57', 'mc_sim_7b_63', 'mc_sim_7b_63_balanced')
    """
    return tuple(_shipped())


def named_tree(name: str) -> DraftTree:
    """Returns the shipped tree ``name``; for any other name, raises a LanternError that lists the names.

    Example:
        >>> lantern_jax.named_tree("chain").paths[-1]
        (0, 0, 0, 0, 0)
    """
    trees = _shipped()
    if name not in trees:
        raise errors.unknown("tree", name, trees)
    return DraftTree(trees[name])


def resolve_tree(tree: Any) -> DraftTree:
    """Makes a DraftTree from a name, paths, paths as text (``0.0+1``), a JSON file or a DraftTree; raises LanternError
    for anything else."""
    if isinstance(tree, DraftTree):
        return tree
    if isinstance(tree, Path) or (isinstance(tree, str) and tree.endswith(".json")):
        return DraftTree(read_json(Path(tree), _LARGEST_FILE))
    if not isinstance(tree, str):
        return DraftTree(tree)
    if tree in tree_names():
        return named_tree(tree)
    paths = [path.split(".") for path in tree.split("+")]
    if not all(rank.isdecimal() and rank.isascii() and len(rank) < 8 for path in paths for rank in path):
        raise errors.unknown("tree", tree, tree_names(), ", paths such as 0.0+1, or a JSON file of paths")
    ranks = [tuple(map(int, path)) for path in paths]
    return DraftTree({path[:depth] for path in ranks for depth in range(1, len(path) + 1)})


TREE = Made("a name, paths such as 0.0+1, or a JSON file of paths", resolve_tree)


@cache
def _shipped() -> dict[str, tuple[tuple[int, ...], ...]]:
    shipped = json.loads(resources.files(__package__).joinpath("trees.json").read_text(encoding="utf-8"))
    return {name: _checked_paths(paths) for name, paths in shipped.items()}


def _frozen(values: list[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(values, None if isinstance(values, np.ndarray) else np.int32)
    array.flags.writeable = False
    return array


def _checked_paths(paths) -> tuple[tuple[int, ...], ...]:
    advice = "give lists of child ranks such as [0], [1], [0, 0], without the root's"
    try:
        some = itertools.islice(paths, MOST_NODES + 1)
        paths = [tuple(itertools.islice(path, MOST_DEPTH + 1)) for path in some]
    except TypeError:
        raise LanternError(f"the tree is not a list of paths: {advice}") from None
    if len(paths) > MOST_NODES or any(len(path) > MOST_DEPTH for path in paths):
        raise LanternError(
            f"the tree has more than {MOST_NODES} nodes or is deeper than {MOST_DEPTH}: give fewer"
        )
    for path in paths:
        if not path or not all(map(_is_rank, path)):
            raise LanternError(f"tree path {errors.short(list(path))} is not of ranks >= 0: {advice}")
    ordered = sorted((tuple(map(int, path)) for path in paths), key=lambda path: (len(path), path))
    known = {()}
    for path in ordered:
        shown, above = errors.short(list(path)), errors.short(list(path[:-1]))
        if path in known:
            raise LanternError(f"tree path {shown} appears twice: give every node once")
        if path[:-1] not in known:
            raise LanternError(f"tree path {shown} has no parent: add {above}")
        known.add(path)
    return tuple(ordered)


def _is_rank(rank: Any) -> bool:
    return isinstance(rank, int | np.integer) and not isinstance(rank, bool) and 0 <= rank < 2**31
