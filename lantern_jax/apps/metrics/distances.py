"""Distances between two sets' features: KID, CMMD, precision and recall, and how much a number varies by chance.

Axes: n m pictures of one set and the other, F features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from lantern_jax.io.errors import LanternError

# Distances held together: 128 MiB in float64.
_BLOCK = 1 << 24


@dataclass(frozen=True)
class KernelDistance:
    """The squared maximum mean discrepancy over subsets; it may be negative for sets that do not differ.

    Attributes:
        mean: over the subsets; unbiased for any size.
        deviation: standard deviation over the subsets.
        subsets: number of subsets.
        size: pictures of each set in a subset.
    """

    mean: float
    deviation: float
    subsets: int
    size: int


def kernel_distance(
    left: Float[np.ndarray, "n F"],
    right: Float[np.ndarray, "m F"],
    *,
    subsets: int = 100,
    size: int = 1000,
    seed: int = 2020,
) -> KernelDistance:
    """Returns KID: the unbiased squared mean discrepancy under the kernel (x . y / F + 1)^3 (arXiv 1801.01401).

    Args:
        left, right: features; the computation is in float64.
        subsets: pairs of subsets, each drawn without replacement.
        size: pictures of each set in a subset; all of the smaller set if it has fewer.
        seed: of the draws.

    Raises:
        LanternError: fewer than two pictures in a set.
    """
    size = min(size, len(left), len(right))
    if size < 2:
        raise LanternError(
            f"{len(left)} and {len(right)} picture(s) have no kernel distance: give at least 2 of each"
        )
    generator = np.random.RandomState(seed)
    values = []
    for _ in range(subsets):
        ours = left[generator.choice(len(left), size, replace=False)]
        theirs = right[generator.choice(len(right), size, replace=False)]
        values.append(_squared_discrepancy(ours.astype(np.float64), theirs.astype(np.float64)))
    return KernelDistance(float(np.mean(values)), float(np.std(values)), subsets, size)


def _squared_discrepancy(left: Float[np.ndarray, "n F"], right: Float[np.ndarray, "n F"]) -> float:
    count, width = left.shape

    def kernel(x, y):
        return (x @ y.T / width + 1) ** 3

    def within(x):
        """Returns the mean over pairs of different pictures."""
        values = kernel(x, x)
        return (values.sum() - np.trace(values)) / (count * (count - 1))

    return within(left) + within(right) - 2 * kernel(left, right).mean()


def cmmd(left: Float[np.ndarray, "n F"], right: Float[np.ndarray, "m F"]) -> float:
    """Returns CMMD: 1000 times the squared mean discrepancy under a Gaussian kernel of width 10 (arXiv 2401.09603).

    As in the published code, a picture's likeness to itself counts, which makes the value greater, above all for small
    sets, and never negative.

    Args:
        left, right: embeddings of length 1, as ``clip_scores.cmmd_features`` reads them; the computation is in float64.
    """

    def mean_kernel(x, y):
        total = sum(np.exp(-squares / (2 * 10.0**2)).sum() for _, squares in squared_distances(x, y))
        return total / (len(x) * len(y))

    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return float(1000 * (mean_kernel(left, left) + mean_kernel(right, right) - 2 * mean_kernel(left, right)))


@dataclass(frozen=True)
class PrecisionRecall:
    """Shares of the generated pictures among the real ones, and of the real ones among the generated."""

    precision: float
    recall: float


def precision_recall(
    made: Float[np.ndarray, "n F"], real: Float[np.ndarray, "m F"], *, k: int = 3, strict: bool = False
) -> PrecisionRecall:
    """Returns the shares of each set within the balls around the other's pictures (arXiv 1904.06991).

    A picture's ball reaches to its k-th nearest neighbour in its own set, itself not counted.

    Args:
        made: features of the generated pictures.
        real: features of the reference.
        k: the neighbour that a ball reaches to.
        strict: whether a picture on a ball's surface is outside, as in LANTERN's program; otherwise it is inside, as in
            the paper's code, ADM and torch-fidelity.

    Raises:
        LanternError: a set has no k-th neighbour.
    """
    for name, features in (("generated", made), ("reference", real)):
        if len(features) <= k:
            raise LanternError(
                f"{len(features)} {name} picture(s) have no neighbour number {k}: give at least {k + 1}"
            )
    made, real = np.asarray(made, np.float64), np.asarray(real, np.float64)
    made_radii, real_radii = _squared_radii(made, k), _squared_radii(real, k)
    inside = np.less if strict else np.less_equal
    found: Bool[np.ndarray, " n"] = np.zeros(len(made), bool)
    covered: Bool[np.ndarray, " m"] = np.zeros(len(real), bool)
    for rows, squares in squared_distances(made, real):
        found[rows] = inside(squares, real_radii).any(axis=1)
        covered |= inside(squares, made_radii[rows, None]).any(axis=0)
    return PrecisionRecall(float(found.mean()), float(covered.mean()))


def _squared_radii(features: Float[np.ndarray, "n F"], k: int) -> Float[np.ndarray, " n"]:
    radii = np.empty(len(features))
    for rows, squares in squared_distances(features, features):
        own = np.arange(rows.start, rows.stop)
        squares[own - rows.start, own] = np.inf
        radii[rows] = np.partition(squares, k - 1, axis=1)[:, k - 1]
    return radii


def squared_distances(
    left: Float[np.ndarray, "n F"], right: Float[np.ndarray, "m F"]
) -> Iterator[tuple[slice, Float[np.ndarray, "b m"]]]:
    """Yields (rows of left, their squared distances to all of right), some rows at a time; never below 0."""
    left_squares, right_squares = (np.einsum("nf,nf->n", features, features) for features in (left, right))
    step = max(1, _BLOCK // len(right))
    for start in range(0, len(left), step):
        rows = slice(start, min(start + step, len(left)))
        squares = left_squares[rows, None] + right_squares - 2 * (left[rows] @ right.T)
        yield rows, np.maximum(squares, 0, out=squares)


def bootstrap_draws(count: int, replicates: int, seed: int = 0) -> Int[np.ndarray, "1+replicates count"]:
    """Returns the indices 0 to ``count`` - 1 in order, then, for each replicate, as many drawn with replacement.

    Equal seeds draw alike, so replicates of two sets of the same prompts may be subtracted.
    """
    drawn = np.random.default_rng(seed).integers(count, size=(replicates, count))
    return np.concatenate([np.arange(count)[None], drawn])


def interval(values: Float[np.ndarray, " 1+replicates"]) -> tuple[float, float, float]:
    """Returns the first value and the two ends of the 95 % interval of the others.

    Replicates hold fewer different pictures than the set, and so lie further away on average: they are shifted so that
    their mean is the value.
    """
    value, drawn = values[0], values[1:]
    low, high = np.percentile(drawn, (2.5, 97.5)) + value - np.mean(drawn)
    return float(value), float(low), float(high)
