"""Sums of features that can be merged, and the Fréchet distance of what they describe.

Axes: n pictures, F features.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Moments:
    """What is kept of n pictures' features; sets are merged by ``+``, in any order.

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
        """The moments of these features."""
        features = np.asarray(features, np.float64)
        return cls(len(features), features.sum(axis=0), features.T @ features)

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    @property
    def mean(self) -> Float[np.ndarray, " F"]:
        """float64 [F]."""
        return self.total / self.count

    @property
    def covariance(self) -> Float[np.ndarray, "F F"]:
        """float64 [F, F], divided by n - 1. ValueError for fewer than two pictures."""
        if self.count < 2:
            raise LanternError(f"{self.count} picture(s) have no covariance: give at least 2")
        return (self.outer - self.count * np.outer(self.mean, self.mean)) / (self.count - 1)

    @cached_property
    def root(self) -> Float[np.ndarray, "F F"]:
        """float64 [F, F], the covariance's square root."""
        return _root(self.covariance)


@dataclass(frozen=True)
class Normal:
    """The normal law that a Fréchet distance takes a set for; it cannot be merged.

    Attributes:
        mean: float64 [F].
        root: float64 [r, F], any matrix whose root^T root is the covariance.
    """

    mean: Float[np.ndarray, " F"]
    root: Float[np.ndarray, "r F"]

    @classmethod
    def of_covariance(cls, mean: Float[np.ndarray, " F"], covariance: Float[np.ndarray, "F F"]) -> "Normal":
        """From mean and covariance, which has no negative eigenvalue but for rounding."""
        return cls(mean, _root(covariance))

    @classmethod
    def of_features(cls, features: Float[np.ndarray, "n F"]) -> "Normal":
        """From at least two pictures' features: with fewer pictures than features the quick way."""
        features = np.asarray(features, np.float64)
        mean = features.mean(axis=0)
        return cls(mean, (features - mean) / np.sqrt(len(features) - 1))


def frechet_distance(left: Moments | Normal, right: Moments | Normal) -> float:
    """The squared Fréchet (2-Wasserstein) distance of two normal distributions (arXiv 1706.08500, equation 6).

    With S = R^T R the trace of (S_l S_r)^(1/2) is the sum of the singular values of R_l R_r^T: no root of a matrix that
    is not symmetric is needed, and sets with fewer pictures than features are no special case.
    """
    spread = np.sum(left.root**2) + np.sum(right.root**2)
    shared = np.linalg.svd(left.root @ right.root.T, compute_uv=False).sum()
    return float(max(np.sum((left.mean - right.mean) ** 2) + spread - 2 * shared, 0.0))


def _root(covariance: Float[np.ndarray, "F F"]) -> Float[np.ndarray, "F F"]:
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
