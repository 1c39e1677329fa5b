"""Sums of features, and the Fréchet distance between the distributions that they describe.

Axes: n pictures, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Moments:
    """Sums of n pictures' features.

    Attributes:
        count: n.
        total: float64 [F], their sum.
        outer: float64 [F, F], the sum of their outer products.
    """

    count: int
    total: Float[np.ndarray, " F"]
    outer: Float[np.ndarray, "F F"]

    @classmethod
    def of(cls, features: Float[np.ndarray, "n F"]) -> "Moments":
        """Sums up features."""
        features = np.asarray(features, np.float64)
        return cls(len(features), features.sum(axis=0), features.T @ features)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], start: str) -> "Moments":
        """Reads what ``to_arrays`` returned; raises LanternError for bad arrays, KeyError for a missing one."""
        count, total, outer = (arrays[f"{start}{part}"] for part in ("count", "total", "outer"))
        numbers = count.dtype.kind == "i" and total.dtype.kind == outer.dtype.kind == "f"
        if not numbers or count.shape != () or total.ndim != 1 or outer.shape != total.shape * 2:
            raise LanternError("its sums do not fit together")
        if not (np.isfinite(total).all() and np.isfinite(outer).all()):
            raise LanternError("its sums are not finite")
        return cls(int(count), total, outer)

    def to_arrays(self, start: str) -> dict[str, np.ndarray]:
        """Returns arrays for a .npz; their names begin with ``start``."""
        parts = {"count": np.int64(self.count), "total": self.total, "outer": self.outer}
        return {f"{start}{part}": value for part, value in parts.items()}

    @property
    def mean(self) -> Float[np.ndarray, " F"]:
        """The mean, float64 [F]."""
        return self.total / self.count

    @property
    def covariance(self) -> Float[np.ndarray, "F F"]:
        """The covariance, float64 [F, F], divided by n - 1; raises LanternError for fewer than two pictures."""
        if self.count < 2:
            raise LanternError(f"{self.count} picture(s) have no covariance: give at least 2")
        return (self.outer - self.count * np.outer(self.mean, self.mean)) / (self.count - 1)

    @cached_property
    def root(self) -> Float[np.ndarray, "F F"]:
        """The covariance's square root, float64 [F, F]."""
        return _root(self.covariance)


@dataclass(frozen=True)
class Normal:
    """The normal distribution that stands for a set in a Fréchet distance; it cannot be merged.

    Attributes:
        mean: float64 [F].
        root: float64 [r, F], any matrix whose root^T root is the covariance.
    """

    mean: Float[np.ndarray, " F"]
    root: Float[np.ndarray, "r F"]

    @classmethod
    def of_covariance(cls, mean: Float[np.ndarray, " F"], covariance: Float[np.ndarray, "F F"]) -> "Normal":
        """Makes it from a mean and a covariance, whose negative eigenvalues are rounding errors."""
        return cls(mean, _root(covariance))

    @classmethod
    def of_features(cls, features: Float[np.ndarray, "n F"]) -> "Normal":
        """Makes it from the features of at least two pictures: quick if there are fewer pictures than features."""
        features = np.asarray(features, np.float64)
        mean = features.mean(axis=0)
        return cls(mean, (features - mean) / np.sqrt(len(features) - 1))


def frechet_distance(left: Moments | Normal, right: Moments | Normal) -> float:
    """Returns the squared Fréchet (2-Wasserstein) distance of two normal distributions (arXiv 1706.08500, equation 6).

    With S = R^T R, the trace of (S_l S_r)^(1/2) is the sum of the singular values of R_l R_r^T, which needs no root of
    an asymmetric matrix and no special case for fewer pictures than features.
    """
    spread = np.sum(left.root**2) + np.sum(right.root**2)
    shared = np.linalg.svd(left.root @ right.root.T, compute_uv=False).sum()
    return float(max(np.sum((left.mean - right.mean) ** 2) + spread - 2 * shared, 0.0))


def _root(covariance: Float[np.ndarray, "F F"]) -> Float[np.ndarray, "F F"]:
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
