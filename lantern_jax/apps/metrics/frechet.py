"""The Fréchet distance between the distributions of two sets' features.

Axes: n pictures, F features.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lantern_jax.io.errors import LanternError


@dataclass(frozen=True)
class Normal:
    """The normal distribution that stands for a set in a Fréchet distance.

    Attributes:
        mean: float64 [F].
        root: float64 [r, F], any matrix whose root^T root is the covariance.
    """

    mean: Float[np.ndarray, " F"]
    root: Float[np.ndarray, "r F"]

    @classmethod
    def of_covariance(cls, mean: Float[np.ndarray, " F"], covariance: Float[np.ndarray, "F F"]) -> "Normal":
        """Makes it from a mean and a covariance, whose negative eigenvalues are rounding errors."""
        values, vectors = np.linalg.eigh(covariance)
        return cls(mean, (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)

    @classmethod
    def of_features(cls, features: Float[np.ndarray, "n F"]) -> "Normal":
        """Makes it from the features of at least two pictures; raises LanternError for fewer."""
        count, width = features.shape
        if count < 2:
            raise LanternError(f"{count} picture(s) have no covariance: give at least 2")
        features = np.asarray(features, np.float64)
        mean = features.mean(axis=0)
        root = (features - mean) / np.sqrt(count - 1)
        # The smaller root of the two.
        return cls(mean, root) if count < width else cls.of_covariance(mean, root.T @ root)


def frechet_distance(left: Normal, right: Normal) -> float:
    """Returns the squared Fréchet (2-Wasserstein) distance of two normal distributions (arXiv 1706.08500, equation 6).

    With S = R^T R, the trace of (S_l S_r)^(1/2) is the sum of the singular values of R_l R_r^T, which needs no root of
    an asymmetric matrix and no special case for fewer pictures than features.
    """
    spread = np.sum(left.root**2) + np.sum(right.root**2)
    shared = np.linalg.svd(left.root @ right.root.T, compute_uv=False).sum()
    return float(max(np.sum((left.mean - right.mean) ** 2) + spread - 2 * shared, 0.0))
