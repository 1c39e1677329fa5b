"""How far generated pictures are from real ones: the Fréchet distance of a tokenizer's features.

A picture's features are three numbers for each channel of the VQ encoder's output, normalized where the codebook is:
its mean over the cells, its standard deviation over the cells, and the mean difference between neighbouring cells. That
is 24 numbers for the demo, few enough for the moments of some hundred pictures; the Inception network of the usual FID
has 2048 and wants tens of thousands. They are whitened by the real pictures' covariance, so that day and night, which
differ most, do not outweigh everything else. Real pictures are taken as the tokenizer reconstructs them: what it loses
no way of decoding can give back, and that is more than what methods differ by.

Axes: n pictures, one a prompt, R real ones a prompt, H W height and width, h w code grid, C channels of a code,
F = 3 C features.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from lantern_jax.metrics.distances import bootstrap_draws
from lantern_jax.metrics.moments import Moments, frechet_distance
from lantern_jax.models.vq import VQConfig, VQModel, l2_normalize

REPLICATES = 1000
# The least standard deviation, of the greatest, that whitening stretches to 1.
LEAST_DEVIATION = 0.01


def pool(cells: Float[Array, "n h w C"]) -> Float[Array, "n F"]:
    """Mean, standard deviation and mean neighbour difference, both ways, of each channel."""
    places = (1, 2)
    across = jnp.mean(jnp.abs(jnp.diff(cells, axis=1)), axis=places)
    along = jnp.mean(jnp.abs(jnp.diff(cells, axis=2)), axis=places)
    parts = jnp.mean(cells, axis=places), jnp.std(cells, axis=places), (across + along) / 2
    return jnp.concatenate(parts, axis=-1)


def feature_reader(config: VQConfig, params, batch: int = 32) -> Callable[..., Float[np.ndarray, "n F"]]:
    """(pictures uint8 [n, H, W, 3], real=False) -> features float64 [n, F], encoding ``batch`` at a time.

    ``real`` ones are reconstructed first. ``params`` are ``VQModel``'s.
    """
    model = VQModel(config)

    @jax.jit
    def read(params, pictures):
        cells = model.apply(params, _scaled(pictures), method="encode")
        return pool(l2_normalize(cells) if config.l2_norm else cells)

    @jax.jit
    def reconstruct(params, pictures):
        made = jnp.clip(model.apply(params, _scaled(pictures)), -1, 1)
        return jnp.round((made + 1) * 127.5).astype(jnp.uint8)

    def features(pictures: UInt8[np.ndarray, "n H W 3"], real: bool = False):
        parts = []
        for first in range(0, len(pictures), batch):
            part = pictures[first : first + batch]
            filled = np.pad(part, ((0, batch - len(part)), (0, 0), (0, 0), (0, 0)))
            filled = reconstruct(params, filled) if real else filled
            parts.append(np.asarray(read(params, filled), np.float64)[: len(part)])
        return np.concatenate(parts)

    return features


def _scaled(pictures: UInt8[Array, "n H W 3"]) -> Float[Array, "n H W 3"]:
    return pictures.astype(jnp.float32) / 127.5 - 1


def whitening(features: Float[np.ndarray, "n F"]) -> Float[np.ndarray, "F F"]:
    """The matrix to multiply features by for them to have the identity as covariance."""
    values, vectors = np.linalg.eigh(np.cov(features, rowvar=False))
    return vectors / np.sqrt(np.maximum(values, values[-1] * LEAST_DEVIATION**2))


def replicated_distances(
    made: Float[np.ndarray, "n F"],
    real: Float[np.ndarray, "n R F"],
    seed: int = 0,
    replicates: int = REPLICATES,
) -> Float[np.ndarray, " 1+replicates"]:
    """Fréchet distances of pictures to the real ones of the same prompts: of all, then of bootstrap replicates.

    A replicate draws prompts, each with its picture and its real ones, so that chance among prompts does not count as
    a difference. The same seed draws the same prompts: replicates of two methods may be subtracted.
    """
    width = real.shape[-1]
    scale = whitening(real.reshape(-1, width))
    made, real = made @ scale, real @ scale
    return np.array(
        [
            frechet_distance(Moments.of(made[draw]), Moments.of(real[draw].reshape(-1, width)))
            for draw in bootstrap_draws(len(made), replicates, seed)
        ]
    )
