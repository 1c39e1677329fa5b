"""Gap trees (ours): windows whose tree is chosen each round by the gaps in the race, around a spine that is kept.

Each place of a window has a few best guesses. A guess is worth softmax(beta (log q' + g)), which says how far it leads
in the race under the noise that draft and target share. A path is worth the product of its guesses' worths, and the
best nodes are kept. Most of the spine, the path of best guesses, is kept however little it is worth, because the
target's pass over it is what refines the far places.

The possible paths, the *pool*, are fixed, so that choosing a tree takes one matrix product and a top-k. Besides the
spine they are the paths that leave it in any way within the first ``FRONT`` places, or once after them, and then
continue with best guesses for up to ``TAIL`` places.

Axes: B batch, W window, K guesses for a place, P nodes of the pool, N nodes (root included), V codes.
"""

import itertools
from dataclasses import MISSING, dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from lantern_jax.decoding.fields import SHARPNESS, check_fields, field, whole
from lantern_jax.decoding.protocols import Draft
from lantern_jax.decoding.sampling import top_children
from lantern_jax.decoding.topology import best_of_pool
from lantern_jax.decoding.tree import GuessTree
from lantern_jax.io.errors import LanternError

# The most guesses per place; the first places, where a path may leave the spine repeatedly; best guesses afterwards.
BRANCHES, FRONT, TAIL = 4, 3, 8
# Bounds of a guess's log worth: none is certain, so a child is always worth less than its parent, however sums are
# rounded; and none counts for so little that the rounding would show.
_LEAST, _MOST = -20.0, -1e-3


class Pool(NamedTuple):
    """The nodes that may be kept, parents before children, shallower ones first, siblings by rank.

    Attributes:
        ranks: float32 [P, W * K], 1 where a node's path has that guess for that place.
        parents: int32 [P], -1 for the root.
        place, rank: int32 [P], a node's guess.
        on_spine: bool [P].
    """

    ranks: Float[np.ndarray, "P W*K"]
    parents: Int[np.ndarray, " P"]
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
        >>> tree = lantern_jax.draftings.GapTree(window=40, nodes=56)
        >>> tree.num_nodes, tree.max_depth, tree.spine
        (57, 40, 33)
    """

    window: int = whole(MISSING, 1, 64)
    nodes: int = whole(MISSING, 1, 1024)
    sharpness: float = field(2.83, SHARPNESS)

    def __post_init__(self):
        check_fields(self)
        most = len(_paths(self.window))
        if self.nodes > most:
            raise LanternError(
                f"a gap tree of {self.window} places has {most} nodes: give no more, not {self.nodes}"
            )

    @property
    def max_depth(self) -> int:
        return self.window

    @property
    def max_rank(self) -> int:
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
    ranks = np.zeros((len(paths), window, BRANCHES), np.float32)
    for i, path in enumerate(paths):
        ranks[i, np.arange(len(path)), path] = 1
    return Pool(
        ranks=ranks.reshape(len(paths), -1),
        parents=np.asarray([ids[path[:-1]] for path in paths], np.int32),
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


def gap_draft(tree: GapTree, root: Int[Array, "B 1"], ranked: Float[Array, "B W V"]) -> Draft:
    """Drafts the tree as point masses; ``ranked`` is log q' + g."""
    pool, scores = tree.pool, jnp.float32(tree.sharpness) * ranked
    values, ids = top_children(scores, BRANCHES)
    values = values - jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    values = jnp.clip(values, _LEAST, _MOST).reshape(len(root), -1)
    worth = jnp.einsum("bp,np->bn", values, jnp.asarray(pool.ranks), precision=lax.Precision.HIGHEST)
    kept_first = pool.on_spine & (pool.place < tree.spine)
    worth = jnp.where(jnp.asarray(kept_first)[None], jnp.float32(1), worth)
    parents = jnp.asarray(pool.parents)[None]
    chosen, topology = best_of_pool(worth, parents, tree.nodes, tree.max_depth, BRANCHES)
    codes = jnp.take_along_axis(
        ids.reshape(len(root), -1), jnp.asarray(pool.place * BRANCHES + pool.rank)[chosen], axis=1
    )
    return Draft(jnp.concatenate([root, codes], axis=1), topology)
