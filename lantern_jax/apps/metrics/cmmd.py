"""CMMD (arXiv 2401.09603): the maximum mean discrepancy of two sets' CLIP embeddings.

Axes: n m pictures of either set, F embedding.
"""

from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from lantern_jax.apps.metrics.clip_files import read_clip
from lantern_jax.apps.metrics.clip_scores import embedding_reader
from lantern_jax.apps.metrics.distances import squared_distances
from lantern_jax.apps.metrics.features import FeatureReader
from lantern_jax.apps.metrics.preprocessing import square_input
from lantern_jax.io.errors import LanternError

SIGMA = 10.0
SCALE = 1000.0


def cmmd(left: Float[np.ndarray, "n F"], right: Float[np.ndarray, "m F"], *, unbiased: bool = False) -> float:
    """Returns 1000 times the squared maximum mean discrepancy under a Gaussian kernel of width 10.

    Args:
        left, right: embeddings of length 1, as ``cmmd_features`` reads them.
        unbiased: leave out each picture's likeness to itself. The published code counts it, which makes the value
            greater, above all for small sets, and never negative.

    Raises:
        LanternError: features differ in width, are not finite, or are too few.
    """
    sets = [np.asarray(features, np.float64) for features in (left, right)]
    least = 2 if unbiased else 1
    if any(found.ndim != 2 for found in sets) or sets[0].shape[1] != sets[1].shape[1]:
        raise LanternError(f"features are {[list(found.shape) for found in sets]}: give [n, F] and [m, F]")
    for features in sets:
        if len(features) < least:
            raise LanternError(f"{len(features)} picture(s) have no CMMD: give at least {least}")
        if not np.isfinite(features).all():
            raise LanternError("features are not finite: check the pictures' network and weights")
    within = [_mean_kernel(features, features) for features in sets]
    if unbiased:
        within = [(mean * n - 1) / (n - 1) for mean, n in zip(within, map(len, sets), strict=True)]
    return SCALE * (sum(within) - 2 * _mean_kernel(*sets))


def cmmd_features(weights: str | Path, *, activation: str | None = None, batch: int = 16) -> FeatureReader:
    """Returns the reader of CMMD's embeddings; the published CLIP is ViT-L/14 of 336 pixels.

    Args:
        weights, activation: see ``read_clip``.
        batch: pictures read together.

    Raises:
        LanternError, ImportError: as ``read_clip``.
    """
    config, params = read_clip(weights, activation)
    name = f"{config.name} picture embedding, middle square, bicubic"
    return embedding_reader(config, jax.device_put(params), square_input, name=name, batch=batch)


def _mean_kernel(left: Float[np.ndarray, "n F"], right: Float[np.ndarray, "m F"]) -> float:
    """Returns the mean of exp(-|x - y|² / (2 σ²)) over all pairs."""
    total = sum(
        float(np.exp(-squares / (2 * SIGMA**2)).sum()) for _, squares in squared_distances(left, right)
    )
    return total / (len(left) * len(right))
