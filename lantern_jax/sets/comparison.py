"""Two sets of pictures compared, and pictures scored with their prompts: numbers with what they depend on.

Axes: n pictures.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Float

from lantern_jax.io.errors import LanternError
from lantern_jax.metrics.bootstrap import bootstrap_draws, interval
from lantern_jax.metrics.distances import kernel_distance, precision_recall
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.metrics.moments import Moments, Normal, frechet_distance
from lantern_jax.metrics.protocols import CMMD, FRECHET, KERNEL, MANIFOLDS, Preset, Reading, Step
from lantern_jax.metrics.registry import READERS
from lantern_jax.metrics.scores import Score
from lantern_jax.sets.reference import Statistics
from lantern_jax.sets.sources import NumberedPicture

# Bootstrap replicates of a Fréchet distance, where a replicate takes little time.
REPLICATES, WIDEST = 200, 256
# Pictures given to a score at once.
_CHUNK = 64


def build_reader(reading: Reading, weights) -> FeatureReader:
    """The reader of a reading, with its file of weights or None."""
    reader = READERS[reading.features].build(weights, reading.preprocessing)
    return reader if reading.step is None else reader.after(*reading.step)


def compare(
    made: Statistics, real: Statistics, reading: Reading, replicates: int | None = None
) -> dict[str, Any]:
    """What a reading says of two sets, ready for JSON.

    Args:
        made: of the generated pictures.
        real: of the reference.
        reading: what to compute.
        replicates: bootstrap replicates of the generated pictures, for the Fréchet distance's interval; 0 for none,
            None for ``REPLICATES`` unless there are more than ``WIDEST`` features.

    Returns:
        "reader", "pictures" and "reference_pictures" (None: not known); "frechet" with "frechet_interval"; "kid";
        "precision", "recall", "k" and "strict"; "cmmd"; "left_out" are the measures that need features where a set is
        a file without them.
    """
    row: dict[str, Any] = {
        "reader": made.reader, "features": reading.features, "pictures": made.count, "reference_pictures": real.count
    }  # fmt: skip
    pair = None if made.features is None or real.features is None else (made.features, real.features)
    if FRECHET in reading.measures:
        row |= _frechet(made, real, replicates)
    if KERNEL in reading.measures and pair is not None:
        row["kid"] = asdict(kernel_distance(*pair))
    if MANIFOLDS in reading.measures and pair is not None:
        row |= asdict(precision_recall(*pair, k=reading.k, strict=reading.strict))
        row |= {"k": reading.k, "strict": reading.strict}
    row["left_out"] = [measure for measure in reading.measures if measure != FRECHET and pair is None]
    if CMMD in reading.measures and pair is not None:
        from lantern_jax.metrics.cmmd import cmmd

        row["cmmd"] = cmmd(*pair)
    return row


def _frechet(made: Statistics, real: Statistics, replicates: int | None) -> dict[str, Any]:
    if made.features is None:
        replicates = 0
    elif replicates is None:
        replicates = REPLICATES if made.features.shape[1] <= WIDEST else 0
    reference = _law(real)
    distance = frechet_distance(_law(made), reference)
    if not replicates:
        return {"frechet": distance}
    draws = bootstrap_draws(len(made.features), replicates)[1:]
    drawn = [frechet_distance(_of_features(made.features[draw]), reference) for draw in draws]
    _, low, high = interval(np.array([distance, *drawn]))
    return {"frechet": distance, "frechet_interval": [low, high]}


def _law(statistics: Statistics) -> Moments | Normal:
    """Of what a file says, where its features are of fewer pictures than its mean and covariance."""
    if isinstance(statistics.normal, Normal) or statistics.features is None:
        return statistics.normal
    return _of_features(statistics.features)


def _of_features(features: Float[np.ndarray, "n F"]) -> Moments | Normal:
    """The cheaper one."""
    few = len(features) < features.shape[1]
    return Normal.of_features(features) if few else Moments.of(features)


def check_sizes(preset: Preset, made: Statistics, real: Statistics) -> None:
    """Raises ValueError where a preset wants pictures of one size and these are not."""
    if not preset.one_size:
        return
    for name, one in (("the set's", made), ("the reference's", real)):
        if one.size is None and one.features is not None:
            raise LanternError(
                f"{name} pictures are of several sizes: this preset compares pictures of one size"
            )
    if None not in (made.size, real.size) and made.size != real.size:
        sizes = " and ".join(" x ".join(map(str, one.size)) for one in (made, real))
        raise LanternError(
            f"pictures and reference measure {sizes}: this preset compares pictures of one size, resize first"
        )


def score_pictures(
    score: Score, pictures: Iterable[NumberedPicture], steps: Sequence[Step]
) -> dict[str, Any]:
    """The mean of a score over pictures with their prompts, ready for JSON: "name", "pictures", "mean", "interval".

    The interval is that of 95 % under a normal law of the mean.

    Raises:
        ValueError: values that are not finite, or fewer than two pictures.
    """
    values: list[np.ndarray] = []
    pictures = iter(pictures)
    while chunk := list(itertools.islice(pictures, _CHUNK)):
        values.append(
            np.asarray(score.of([_stepped(one, steps) for one in chunk], [one.prompt for one in chunk]))
        )
    every = np.concatenate(values).astype(np.float64) if values else np.zeros(0)
    if len(every) < 2:
        raise LanternError(f"{len(every)} picture(s) have no mean with an interval: give at least 2")
    if not np.isfinite(every).all():
        raise LanternError(f"{score.name} gives values that are not finite: its weights are damaged")
    mean, error = float(every.mean()), float(every.std(ddof=1) / np.sqrt(len(every)))
    interval = [mean - 1.96 * error, mean + 1.96 * error]
    return {"name": score.name, "pictures": len(every), "mean": mean, "interval": interval}


def _stepped(one: NumberedPicture, steps: Sequence[Step]) -> np.ndarray:
    picture = one.picture
    for step in steps:
        picture = step(picture)
    return picture
