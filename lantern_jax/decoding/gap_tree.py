"""Gap trees (ours): windows whose tree is chosen each round by the gaps in the race, around a spine that is kept.

Each place of a window has a few best guesses. A guess is worth softmax(beta (log q' + g)), which says how far it leads
in the race under the noise that draft and target share. A path is worth the product of its guesses' worths, and the
best nodes are kept. Most of the spine, the path of best guesses, is kept however little it is worth, because the
target's pass over it is what refines the far places.

The possible paths, the *pool*, are fixed, so that choosing a tree takes one matrix product and a top-k. Besides the
spine they are the paths that leave it in any way within the first ``FRONT`` places, or once after them, and then
continue with best guesses for up to ``TAIL`` places. Needs no JAX.
"""

import itertools
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from lantern_jax.decoding.fields import SHARPNESS, check_count
from lantern_jax.decoding.tree import GuessTree
from lantern_jax.io.errors import LanternError

# The most guesses per place; the first places, where a path may leave the spine repeatedly; best guesses afterwards.
BRANCHES, FRONT, TAIL = 4, 3, 8


class Pool(NamedTuple):
    """The nodes that may be kept, parents before children, shallower ones first, siblings by rank.

    Attributes:
        ranks: float32 [P, W * K], 1 where a node's path has that guess for that place.
        paths: int32 [P, W + 1], ids from the root, which is -1 here, to a node, padded by repeating the node.
        parents: int32 [P], -1 for the root.
        children: int32 [P + 1, K], ids of each node's children, the root's in the last row; -1 for none.
        depth: int32 [P].
        place, rank: int32 [P], a node's guess.
        on_spine: bool [P].
    """

    ranks: Float[np.ndarray, "P W*K"]
    paths: Int[np.ndarray, "P W+1"]
    parents: Int[np.ndarray, " P"]
    children: Int[np.ndarray, "P+1 K"]
    depth: Int[np.ndarray, " P"]
    place: Int[np.ndarray, " P"]
    rank: Int[np.ndarray, " P"]
    on_spine: np.ndarray


@dataclass(frozen=True)
class GapTree(GuessTree):
    """The sizes of a gap tree.

    Attributes:
        window: W, the number of places guessed, 1 to 64.
        nodes: the number of nodes kept, the root not counted, 1 to 1024.
        sharpness: beta, a finite number > 0; the default is fitted on the demo.

    Raises:
        LanternError: a size that is out of range.

    Example:
        >>> tree = lantern_jax.GapTree(window=40, nodes=56)
        >>> tree.num_nodes, tree.max_depth, tree.spine
        (57, 40, 33)
    """

    window: int
    nodes: int
    sharpness: float = 2.83

    def __post_init__(self):
        for name, most in (("window", 64), ("nodes", 1024)):
            object.__setattr__(self, name, check_count(name, getattr(self, name), most))
        SHARPNESS.check("sharpness", self.sharpness)
        most = len(_paths(self.window))
        if self.nodes > most:
            raise LanternError(
                f"a gap tree of {self.window} places has {most} nodes: give no more, not {self.nodes}"
            )

    @property
    def max_depth(self) -> int:
        """Implements ``GuessTree.max_depth``."""
        return self.window

    @property
    def max_rank(self) -> int:
        """Implements ``GuessTree.max_rank``."""
        return BRANCHES - 1

    @property
    def spine(self) -> int:
        """Number of spine nodes that are always kept."""
        return min(self.nodes, max(1, self.window * 5 // 6))

    @property
    def pool(self) -> Pool:
        """The nodes that may be kept."""
        return _pool(self.window)


@lru_cache(8)
def _pool(window: int) -> Pool:
    """Makes the pool shared by all gap trees of a window, up to 3 MB."""
    paths = sorted(_paths(window), key=lambda path: (len(path), path))
    ids = {path: i for i, path in enumerate(paths)} | {(): -1}
    count = len(paths)
    chosen = np.zeros((count, window, BRANCHES), np.float32)
    from_root = np.full((count, window + 1), -1, np.int32)
    children = np.full((count + 1, BRANCHES), -1, np.int32)
    for path, i in ids.items():
        if not path:
            continue
        chosen[i, np.arange(len(path)), path] = 1
        from_root[i, : len(path) + 1] = [ids[path[:depth]] for depth in range(len(path) + 1)]
        from_root[i, len(path) :] = i
        children[ids[path[:-1]], path[-1]] = i
    return Pool(
        ranks=chosen.reshape(count, -1),
        paths=from_root,
        parents=np.asarray([ids[path[:-1]] for path in paths], np.int32),
        children=children,
        depth=np.asarray([len(path) for path in paths], np.int32),
        place=np.asarray([len(path) - 1 for path in paths], np.int32),
        rank=np.asarray([path[-1] for path in paths], np.int32),
        on_spine=np.asarray([not any(path) for path in paths]),
    )


@cache
def _paths(window: int) -> frozenset[tuple[int, ...]]:
    """Returns the ranks along every path of the pool."""
    found = {(0,) * depth for depth in range(1, window + 1)}
    front = min(FRONT, window)
    leaving = [ranks for ranks in itertools.product(range(BRANCHES), repeat=front) if any(ranks)]
    leaving += [(0,) * place + (rank,) for place in range(front, window) for rank in range(1, BRANCHES)]
    for ranks in leaving:
        last = max(place for place, rank in enumerate(ranks) if rank) + 1
        for depth in range(1, min(last + TAIL, window) + 1):
            found.add((*ranks, *(0,) * window)[:depth])
    return frozenset(found)
