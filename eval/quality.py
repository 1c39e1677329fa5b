"""How good generated pictures are, and whether they are as good as plain decoding's: numbers with intervals.

Every interval is a 95 % bootstrap interval: a replicate draws prompts, each with its picture and its real ones. All
settings see the same draws, so two of them may be subtracted replicate by replicate. Seconds and other sums over a
batch are drawn by batch.

Windows, which are fixed before any setting is looked at, decide whether a setting's quality is plain decoding's. Plain
decoding is run under two seeds; the two pictures of each prompt are swapped with probability 1/2, and each side is
measured: all pictures come from one distribution, so the difference is due to chance alone. The window of a measure
holds 99 % of such differences. Too good is outside too: it comes from another distribution.

The tokenizer's features are three numbers for each channel of the VQ encoder's output, normalized as the codebook is:
mean and standard deviation over the cells, and the mean difference between neighbouring cells. That is 24 numbers for
the demo, few enough for the moments of a few hundred pictures; the Inception network of the usual FID has 2048 and
needs tens of thousands. Real pictures are first reconstructed by the tokenizer: no decoding method can restore what it
loses, which is more than methods differ by. All features are whitened by the real pictures' covariance, so that the
largest difference, between day and night, does not outweigh all others.

Axes: n pictures, one per prompt, R real ones per prompt, H W height and width, h w code grid, C channels of a code,
F features, T tokens of a picture, b batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from lantern_jax.apps.metrics.distances import bootstrap_draws, interval
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from lantern_jax.models.vq import VQConfig, VQModel, l2_normalize

REPLICATES = 1000
INSIDE = 99.0
# The least standard deviation, relative to the greatest, that whitening stretches to 1.
LEAST_DEVIATION = 0.01
# Kept as sums over a batch, plain decoding's seconds in the same call among them; all else is kept per picture.
SUMS = ("pictures", "sampled", "rounds", "seconds", "plain_seconds", "substituted", "distance")


def pool(cells: Float[Array, "n h w C"]) -> Float[Array, "n F"]:
    """Computes each channel's mean, standard deviation and mean difference between neighbours, in both directions."""
    places = (1, 2)
    across = jnp.mean(jnp.abs(jnp.diff(cells, axis=1)), axis=places)
    along = jnp.mean(jnp.abs(jnp.diff(cells, axis=2)), axis=places)
    parts = jnp.mean(cells, axis=places), jnp.std(cells, axis=places), (across + along) / 2
    return jnp.concatenate(parts, axis=-1)


def feature_reader(config: VQConfig, params, batch: int = 32) -> Callable[..., Float[np.ndarray, "n F"]]:
    """Returns a function (pictures uint8 [n, H, W, 3], real=False) -> features float64 [n, F].

    It encodes ``batch`` pictures together, ``real`` ones after reconstruction. ``params`` are ``VQModel``'s.
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


@dataclass(frozen=True)
class Made:
    """What is kept of a setting's pictures.

    Attributes:
        sums: float64 [b] by name, as ``SUMS``.
        tokens: integers [n, T].
        read: float64 [n, F] by reader: features, and agreement with F = 1.
    """

    sums: Mapping[str, Float[np.ndarray, " b"]]
    tokens: Int[np.ndarray, "n T"]
    read: Mapping[str, Float[np.ndarray, "n F"]]

    @classmethod
    def of(cls, batches: Sequence[Mapping[str, np.ndarray]], readers: Sequence[str]) -> "Made":
        """Joins batches in their order; ``readers`` are the names of what was read from the pictures."""
        sums = {name: np.array([float(batch[name]) for batch in batches]) for name in SUMS}
        joined = {name: np.concatenate([batch[name] for batch in batches]) for name in ("tokens", *readers)}
        return cls(sums, joined.pop("tokens"), {name: part.astype(float) for name, part in joined.items()})


@dataclass(frozen=True)
class Measure:
    """A number that says how good pictures are.

    Attributes:
        name: its key in a row.
        reader: name of the reader from whose output it is computed.
        of: float64 [n, F] of all prompts -> (rows that count, some perhaps more than once -> the number).
    """

    name: str
    reader: str
    of: Callable[[Float[np.ndarray, "n F"]], Callable[[Int[np.ndarray, " n"]], float]]

    def replicated(
        self, read: Float[np.ndarray, "n F"], draws: Sequence[Int[np.ndarray, " n"]]
    ) -> Float[np.ndarray, " replicates"]:
        """Computes the number for every draw of prompts."""
        of = self.of(read)
        return np.array([of(rows) for rows in draws])


def whitening(features: Float[np.ndarray, "n F"]) -> Float[np.ndarray, "F F"]:
    """Returns the matrix by which features are multiplied so that their covariance is the identity."""
    values, vectors = np.linalg.eigh(np.cov(features, rowvar=False))
    return vectors / np.sqrt(np.maximum(values, values[-1] * LEAST_DEVIATION**2))


def frechet_measure(name: str, reader: str, real: Float[np.ndarray, "n R F"]) -> Measure:
    """Returns the Fréchet distance to the real pictures of the same prompts, features whitened by all real ones."""
    width = real.shape[-1]
    scale = whitening(real.reshape(-1, width))
    real = real @ scale

    def of(made):
        made = made @ scale
        return lambda rows: frechet_distance(
            Normal.of_features(made[rows]), Normal.of_features(real[rows].reshape(-1, width))
        )

    return Measure(name, reader, of)


def kernel_measure(name: str, reader: str, real: Float[np.ndarray, "n R F"]) -> Measure:
    """Returns KID (arXiv 1801.01401): the unbiased squared mean discrepancy under the kernel (x . y / F + 1)^3.

    Features are whitened as for the Fréchet distance, so that numbers do not depend on their units. Unlike the one in
    ``metrics.distances``, it is a mean over pairs of different prompts: what a prompt's own pictures have in common is
    not a difference, and a prompt that is drawn twice is not a pair. Kernels are computed once for all draws.
    """
    count, references, width = real.shape
    flat = real.reshape(-1, width)
    scale = whitening(flat)
    flat = flat @ scale

    def kernel(left, right):
        base = left @ right.T / width + 1
        return base * base * base

    within_real = kernel(flat, flat).reshape(count, references, count, references).mean(axis=(1, 3))

    def of(made):
        made = made @ scale
        across = kernel(made, flat).reshape(count, count, references).mean(axis=2)
        pairs = kernel(made, made) + within_real - across - across.T
        np.fill_diagonal(pairs, 0)

        def number(rows):
            times = np.bincount(rows, minlength=count).astype(np.float64)
            return float(times @ pairs @ times / max(times.sum() ** 2 - times @ times, 1.0))

        return number

    return Measure(name, reader, of)


def agreement_measure() -> Measure:
    """Returns the mean agreement with the prompts."""
    return Measure("agreement", "agreement", lambda made: lambda rows: float(made[rows].mean()))


def chance(measure: Measure, one: Made, other: Made, seed: int = 1, swaps: int = REPLICATES) -> float:
    """Returns half the width of a measure's window: how far apart chance puts two sets from one distribution."""
    left, right = one.read[measure.reader], other.read[measure.reader]
    generator, everything = np.random.default_rng(seed), np.arange(len(left))
    apart = []
    for _ in range(swaps):
        swap = generator.random(len(left))[:, None] < 0.5
        sides = np.where(swap, right, left), np.where(swap, left, right)
        apart.append(measure.of(sides[0])(everything) - measure.of(sides[1])(everything))
    return float(np.percentile(np.abs(apart), INSIDE))


def speed_of(made: Made, seed: int = 0) -> dict[str, list[float]]:
    """Returns the ratios of sums over batches, each as [value, low, high]."""
    sums, least = made.sums, np.finfo(np.float64).tiny
    ratios = {
        "seconds": (sums["seconds"], sums["pictures"]),
        "speedup": (sums["plain_seconds"], sums["seconds"]),
        "tokens_a_pass": (sums["sampled"] - sums["pictures"], sums["rounds"]),
        "substituted": (sums["substituted"], sums["sampled"]),
        "distortion": (sums["distance"], sums["substituted"]),
    }
    draws = bootstrap_draws(len(sums["seconds"]), REPLICATES, seed)
    return {
        name: list(interval(np.array([above[rows].sum() / max(below[rows].sum(), least) for rows in draws])))
        for name, (above, below) in ratios.items()
    }


def rows_of(
    made: Mapping[str, Made],
    plain: str,
    other: str,
    measures: Sequence[Measure],
    replicates: int = REPLICATES,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Returns the numbers of all settings by name, those with an interval as [value, low, high].

    ``plain`` and ``other`` are the names of plain decoding under two seeds.
    """
    prompts = bootstrap_draws(len(made[plain].tokens), replicates, seed)
    swaps = min(replicates, REPLICATES)
    windows = {measure.name: chance(measure, made[plain], made[other], swaps=swaps) for measure in measures}
    of_plain = {
        measure.name: measure.replicated(made[plain].read[measure.reader], prompts) for measure in measures
    }
    found = {}
    for name, one in made.items():
        same = one.tokens == made[plain].tokens
        row: dict[str, Any] = {"pictures": len(one.tokens), **speed_of(one, seed)}
        row |= {"same_tokens": float(same.mean()), "same_pictures": float(same.all(axis=1).mean())}
        outside = []
        for measure in measures:
            values = measure.replicated(one.read[measure.reader], prompts)
            less = values - of_plain[measure.name]
            row |= {measure.name: list(interval(values)), f"{measure.name}_less_plain": list(interval(less))}
            if abs(less[0]) > windows[measure.name]:
                outside.append(measure.name)
        found[name] = row | {"windows": windows, "outside": outside}
    return found
