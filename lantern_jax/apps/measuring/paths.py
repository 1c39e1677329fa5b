"""Rank paths: how often they are accepted, the trees that follow from that, and the rounds that a tree would take.

The rank of a token is how many codes the drafter would draft before it, given the preceding tokens. The ranks of the
tokens after a root name the path along which a tree drafted there is accepted. So the accepted tokens to expect from a
tree are the sum, over its nodes, of how often ranks begin with that node's path, and the best tree of a size takes the
most frequent paths. (LANTERN++, arXiv 2502.06352, uses static trees; Sequoia, 2402.12374, derives them from one vector
of ranks; using whole paths is ours.)

Axes: R roots, n pictures, T stream tokens, N nodes (root included).
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from lantern_jax.decoding.tree import DraftTree

TreePath = tuple[int, ...]
# The largest trees considered: nodes below the root, levels, and children of a node.
MAX_NODES, MAX_DEPTH, MAX_RANK = 250, 12, 16


def path_counts(ranks: Int[np.ndarray, "R depth"], max_rank: int = MAX_RANK) -> Counter[TreePath]:
    """Counts the roots whose ranks begin with each path; a path ends before a rank of ``max_rank`` or more, or -1.

    A path counts at least as much as its siblings of higher rank: if chance had it otherwise, a tree would skip ranks,
    which the rejection coupling cannot draft.
    """
    counts: Counter[TreePath] = Counter()
    for row in ranks.tolist():
        path: TreePath = ()
        for rank in row:
            if not 0 <= rank < max_rank:
                break
            path = (*path, rank)
            counts[path] += 1
    for rank in range(max_rank - 1, 0, -1):
        for path in [path for path in counts if path[-1] == rank]:
            better = (*path[:-1], rank - 1)
            counts[better] = max(counts[better], counts[path])
    return counts


def growth(counts: Counter[TreePath], size: int = MAX_NODES, depth: int = MAX_DEPTH) -> list[TreePath]:
    """Returns the ``size`` most frequent paths of at most ``depth`` levels, best first; fewer where fewer were seen.

    A path is never more frequent than its parent or a sibling of lower rank, and ties prefer those: for every m, the
    first m paths are a tree without gaps and, of all trees with m nodes and that depth, the one with the most accepted
    tokens.
    """
    paths = [path for path in counts if len(path) <= depth]
    return sorted(paths, key=lambda path: (-counts[path], len(path), path))[:size]


def roots(ranks: Int[np.ndarray, "n T depth"]) -> Int[np.ndarray, "R depth"]:
    """Returns the ranks of the positions that were roots, one after the other."""
    rows = ranks.reshape(-1, ranks.shape[-1])
    return rows[rows[:, 0] >= 0]


def rounds_of(
    ranks: Int[np.ndarray, "n T depth"], tree: DraftTree, run: Int[np.ndarray, " T+1"]
) -> Int[np.ndarray, " n"]:
    """Returns the rounds that each picture takes with a static tree, by the strict rule on the shared noise.

    Its tokens are plain decoding's, so what a round accepts is known from the ranks after its root, and where it ends
    the next one begins: an exact count in float32. After a forced token it is close but not exact: there the drafter
    continues from its own guess.

    Args:
        ranks: ranks of the tokens at a position and after it; -1 where the picture ends or nothing is known.
        run: length of the run of forced tokens that starts at a position.
    """
    pictures, total, depth = ranks.shape
    below = np.full((tree.num_nodes, tree.max_rank + 2), -1, np.int32)
    below[tree.parents[1:], tree.rank[1:]] = np.arange(1, tree.num_nodes)
    node, accepted = np.zeros((pictures, total), np.int32), np.zeros((pictures, total), np.int32)
    alive = np.ones((pictures, total), bool)
    for level in range(min(depth, tree.max_depth)):
        rank = ranks[:, :, level]
        # The last column holds no child.
        child = below[node, np.where((rank < 0) | (rank > tree.max_rank), tree.max_rank + 1, rank)]
        alive &= child >= 0
        node, accepted = np.where(alive, child, node), accepted + alive
    rounds, every = np.zeros(pictures, np.int64), np.arange(pictures)
    position = np.full(pictures, 1 + run[1])
    while (position < total).any():
        here = np.minimum(position, total - 1)
        # The token after the path is at most the stream's last one.
        step = np.minimum(accepted[every, here], total - here - 1) + 1
        rounds += position < total
        position = np.where(position < total, here + step + run[np.minimum(here + step, total)], position)
    return rounds


def tokens_a_pass(rounds: Float[np.ndarray, " n"], tokens: int) -> tuple[float, float]:
    """Returns (tokens per target pass, its standard error) of pictures with ``tokens`` sampled tokens after the first.

    The error is that of the ratio of sums to first order: pictures are independent, rounds of a picture are not.
    """
    mean = float(np.mean(rounds))
    spread = float(np.std(rounds, ddof=1)) if len(rounds) > 1 else 0.0
    return tokens / mean, tokens / mean * spread / mean / len(rounds) ** 0.5


def slowest(rounds: Float[np.ndarray, " n"], batch: int) -> float:
    """Returns the rounds expected of the slowest of ``batch`` pictures, drawn from these with replacement."""
    share = np.arange(len(rounds) + 1) / len(rounds)
    return float(np.sum(np.sort(rounds) * np.diff(share**batch)))


def rank_probabilities(ranks: Int[np.ndarray, "R depth"]) -> list[list[float]]:
    """Returns the share of each rank at each depth, among the tokens that are there."""
    depths = []
    for column in ranks.T:
        seen = column[column >= 0]
        depths.append(
            [round(float(np.mean(seen == rank)), 4) if len(seen) else 0.0 for rank in range(MAX_RANK)]
        )
    return depths


def expected_tokens(counts: Counter[TreePath], total: int, paths: Sequence[TreePath]) -> float:
    """Returns a tree's tokens per pass from the counts of ``total`` roots, as if all positions were roots as often."""
    return 1 + sum(counts[path] for path in paths) / total
