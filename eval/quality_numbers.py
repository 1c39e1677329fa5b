"""From what was kept of pictures to rows: numbers of speed and quality with intervals, and whether quality held.

Every interval is a 95 % one of a bootstrap: a replicate draws prompts, each with its picture and its real ones, and
all settings see the same draws, so that two of them may be subtracted replicate by replicate. Seconds and what is
summed over a batch are drawn by batch.

Whether a setting's quality is plain decoding's is decided by windows that are fixed before a setting is looked at.
Plain decoding is done under two seeds; for each prompt the two pictures are swapped by half a chance, and a measure is
taken of either side: since the pictures are of one distribution, the difference is what chance alone does with so many
pictures. The window of a measure reaches as far to both sides as 99 % of such differences do. Too good is outside too:
it is another distribution.

Axes: n pictures, one a prompt, R real ones a prompt, F features, b batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from eval.quality import whitening
from lantern_jax.metrics.distances import bootstrap_draws, interval
from lantern_jax.metrics.moments import Moments, frechet_distance

REPLICATES, SWAPS = 1000, 1000
INSIDE = 99.0
# Of a batch, summed over its pictures; the rest of what is kept of it is of pictures one by one.
SUMS = ("pictures", "sampled", "rounds", "seconds", "substituted", "distance")


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
        """The batches in order; ``readers`` are the names of what was read of the pictures."""
        sums = {name: np.array([float(batch[name]) for batch in batches]) for name in SUMS}
        read = {
            name: np.concatenate([batch[name] for batch in batches]).astype(np.float64) for name in readers
        }
        return cls(sums, np.concatenate([batch["tokens"] for batch in batches]), read)


@dataclass(frozen=True)
class Measure:
    """A number that says how good pictures are.

    Attributes:
        name: its key in a row.
        reader: what of a picture it is computed from.
        of: float64 [n, F] of all prompts -> (rows of those that count, some perhaps more than once -> the number).
    """

    name: str
    reader: str
    of: Callable[[Float[np.ndarray, "n F"]], Callable[[Int[np.ndarray, " n"]], float]]

    def replicated(
        self, made: Made, draws: Sequence[Int[np.ndarray, " n"]]
    ) -> Float[np.ndarray, " replicates"]:
        """The number of every draw of prompts."""
        of = self.of(made.read[self.reader])
        return np.array([of(rows) for rows in draws])


def frechet_measure(name: str, reader: str, real: Float[np.ndarray, "n R F"]) -> Measure:
    """The Fréchet distance to the real pictures of the same prompts, features whitened by all real ones."""
    width = real.shape[-1]
    scale = whitening(real.reshape(-1, width))
    real = real @ scale

    def of(made):
        made = made @ scale
        return lambda rows: frechet_distance(
            Moments.of(made[rows]), Moments.of(real[rows].reshape(-1, width))
        )

    return Measure(name, reader, of)


def kernel_measure(name: str, reader: str, real: Float[np.ndarray, "n R F"]) -> Measure:
    """KID (arXiv 1801.01401): the unbiased squared maximum mean discrepancy under the kernel (x . y / F + 1)^3.

    The mean over pairs of different prompts, of made with made ones, real with real ones and made with real ones: what
    a prompt's own pictures have in common is no difference, and a prompt that is drawn twice is no pair.
    """
    count, references, width = real.shape
    flat = real.reshape(-1, width)

    def kernel(left, right):
        base = left @ right.T / width + 1
        return base * base * base

    within_real = kernel(flat, flat).reshape(count, references, count, references).mean(axis=(1, 3))

    def of(made):
        across = kernel(made, flat).reshape(count, count, references).mean(axis=2)
        pairs = kernel(made, made) + within_real - across - across.T
        np.fill_diagonal(pairs, 0)

        def number(rows):
            times = np.bincount(rows, minlength=count).astype(np.float64)
            return float(times @ pairs @ times / max(times.sum() ** 2 - times @ times, 1.0))

        return number

    return Measure(name, reader, of)


def agreement_measure() -> Measure:
    """The mean agreement with the prompts."""
    return Measure("agreement", "agreement", lambda made: lambda rows: float(made[rows].mean()))


def chance(measure: Measure, one: Made, other: Made, seed: int = 1, swaps: int = SWAPS) -> float:
    """Half the width of a measure's window: how far apart sets of one distribution come, see above."""
    left, right = one.read[measure.reader], other.read[measure.reader]
    generator, everything = np.random.default_rng(seed), np.arange(len(left))
    apart = []
    for _ in range(swaps):
        swap = generator.random(len(left))[:, None] < 0.5
        sides = np.where(swap, right, left), np.where(swap, left, right)
        apart.append(measure.of(sides[0])(everything) - measure.of(sides[1])(everything))
    return float(np.percentile(np.abs(apart), INSIDE))


def ratio(
    above: Float[np.ndarray, " b"], below: Float[np.ndarray, " b"], draws: Sequence[Int[np.ndarray, " b"]]
) -> list[float]:
    """[value, low, high] of a ratio of sums over batches."""
    least = np.finfo(np.float64).tiny
    return list(interval(np.array([above[rows].sum() / max(below[rows].sum(), least) for rows in draws])))


def row_of(
    made: Made,
    plain: Made,
    measures: Sequence[Measure],
    windows: Mapping[str, float],
    of_plain: Mapping[str, Float[np.ndarray, " replicates"]],
    seed: int = 0,
) -> dict[str, Any]:
    """The numbers of a setting; those with an interval as [value, low, high].

    Args:
        of_plain: plain decoding's replicates by measure, from draws of the same seed.
    """
    sums = made.sums
    batches = bootstrap_draws(len(sums["seconds"]), REPLICATES, seed)
    prompts = bootstrap_draws(len(made.tokens), len(next(iter(of_plain.values()))) - 1, seed)
    same = made.tokens == plain.tokens
    row: dict[str, Any] = {
        "pictures": len(made.tokens),
        "seconds": ratio(sums["seconds"], sums["pictures"], batches),
        "speedup": ratio(plain.sums["seconds"], sums["seconds"], batches),
        "tokens_a_pass": ratio(sums["sampled"] - sums["pictures"], sums["rounds"], batches),
        "substituted": ratio(sums["substituted"], sums["sampled"], batches),
        "distortion": ratio(sums["distance"], sums["substituted"], batches),
        "same_tokens": float(same.mean()),
        "same_pictures": float(same.all(axis=1).mean()),
    }
    outside = []
    for measure in measures:
        values = of_plain[measure.name] if made is plain else measure.replicated(made, prompts)
        less = values - of_plain[measure.name]
        row[measure.name] = list(interval(values))
        row[f"{measure.name}_less_plain"] = list(interval(less))
        if abs(less[0]) > windows[measure.name]:
            outside.append(measure.name)
    return row | {"windows": dict(windows), "outside": outside}


def rows_of(
    made: Mapping[str, Made],
    plain: str,
    other: str,
    measures: Sequence[Measure],
    replicates: int = REPLICATES,
    swaps: int = SWAPS,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """The numbers of all settings by name; ``plain`` and ``other`` are plain decoding under two seeds."""
    prompts = bootstrap_draws(len(made[plain].tokens), replicates, seed)
    of_plain = {measure.name: measure.replicated(made[plain], prompts) for measure in measures}
    windows = {measure.name: chance(measure, made[plain], made[other], swaps=swaps) for measure in measures}
    return {name: row_of(one, made[plain], measures, windows, of_plain, seed) for name, one in made.items()}
