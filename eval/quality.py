"""How far generated pictures are from real ones: the Fréchet distance of a tokenizer's features.

A picture's features are three numbers for each channel of the VQ encoder's output: its mean over the cells, its
standard deviation over the cells, and the mean difference between neighbouring cells. That is 24 numbers for the
demo, few enough for the moments of some hundred pictures; the Inception network of the usual FID has 2048 and wants
tens of thousands of pictures.

Axes: n pictures, H W height and width, h w code grid, C channels of a code, F = 3 C features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from lantern_jax.models.vq import VQConfig, VQModel

REPLICATES = 1000


def pool(codes: Float[Array, "n h w C"]) -> Float[Array, "n F"]:
    """Mean, standard deviation and mean neighbour difference, both ways, of each channel."""
    cells = (1, 2)
    across = jnp.mean(jnp.abs(jnp.diff(codes, axis=1)), axis=cells)
    along = jnp.mean(jnp.abs(jnp.diff(codes, axis=2)), axis=cells)
    parts = jnp.mean(codes, axis=cells), jnp.std(codes, axis=cells), (across + along) / 2
    return jnp.concatenate(parts, axis=-1)


def feature_reader(
    config: VQConfig, params, batch: int = 32
) -> Callable[[UInt8[np.ndarray, "n H W 3"]], Float[np.ndarray, "n F"]]:
    """The function from pictures to features, which encodes ``batch`` at a time; ``params`` are ``VQModel``'s."""

    @jax.jit
    def read(params, pictures):
        scaled = pictures.astype(jnp.float32) / 127.5 - 1
        return pool(VQModel(config).apply(params, scaled, method="encode"))

    def features(pictures):
        parts = []
        for first in range(0, len(pictures), batch):
            part = pictures[first : first + batch]
            filled = np.pad(part, ((0, batch - len(part)), (0, 0), (0, 0), (0, 0)))
            parts.append(np.asarray(read(params, filled), np.float64)[: len(part)])
        return np.concatenate(parts)

    return features


@dataclass(frozen=True)
class Moments:
    """Mean [F] and square root [F, F] of the covariance of features, float64."""

    mean: Float[np.ndarray, " F"]
    root: Float[np.ndarray, "F F"]


def moments(features: Float[np.ndarray, "n F"]) -> Moments:
    """The moments of at least two pictures' features; ValueError for fewer."""
    features = np.asarray(features, np.float64)
    if len(features) < 2:
        raise ValueError(f"{len(features)} picture(s) have no covariance: give at least 2")
    return moments_of(features.mean(axis=0), np.cov(features, rowvar=False))


def moments_of(mean: Float[np.ndarray, " F"], covariance: Float[np.ndarray, "F F"]) -> Moments:
    """The moments with this mean and this covariance, which has no negative eigenvalue but for rounding."""
    values, vectors = np.linalg.eigh(np.atleast_2d(covariance))
    return Moments(np.asarray(mean, np.float64), (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)


def frechet(left: Moments, right: Moments) -> float:
    """The squared Fréchet (2-Wasserstein) distance of two normal distributions (arXiv 1706.08500, equation 6).

    The trace of (S_l S_r)^(1/2) is the sum of the singular values of S_l^(1/2) S_r^(1/2), so that no root of a matrix
    that is not symmetric is needed.
    """
    spread = np.sum(left.root**2) + np.sum(right.root**2)
    shared = np.linalg.svd(left.root @ right.root, compute_uv=False).sum()
    return float(max(np.sum((left.mean - right.mean) ** 2) + spread - 2 * shared, 0.0))


def interval(
    features: Float[np.ndarray, "n F"], reference: Moments, seed: int = 0, replicates: int = REPLICATES
) -> tuple[float, float, float]:
    """(distance, lower, upper): the Fréchet distance to ``reference`` with a 95 % bootstrap interval over pictures.

    Replicates are further away on average than the pictures they are drawn from, since they hold fewer different
    ones; they are moved so that their mean is the distance.
    """
    generator = np.random.default_rng(seed)
    distance = frechet(moments(features), reference)
    drawn = [
        frechet(moments(features[generator.integers(len(features), size=len(features))]), reference)
        for _ in range(replicates)
    ]
    low, high = np.percentile(drawn, (2.5, 97.5)) + distance - np.mean(drawn)
    return distance, float(max(low, 0.0)), float(high)
