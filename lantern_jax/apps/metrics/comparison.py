"""Comparing two sets of pictures, and scoring pictures with their prompts: numbers, each with what it depends on.

Axes: n pictures.
"""

import itertools
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from lantern_jax.apps.metrics.distances import (
    bootstrap_draws,
    cmmd,
    interval,
    kernel_distance,
    precision_recall,
)
from lantern_jax.apps.metrics.features import FeatureReader, Score
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from lantern_jax.apps.metrics.protocols import CMMD, FRECHET, KERNEL, MANIFOLDS, Preset, Reading, Step
from lantern_jax.apps.metrics.registry import READERS
from lantern_jax.apps.metrics.statistics import Statistics
from lantern_jax.apps.sets.reading import SetPicture
from lantern_jax.io.errors import LanternError

# Bootstrap replicates of a Fréchet distance, and the most features for them: a replicate must take little time.
_REPLICATES, _WIDEST = 200, 256
# Pictures given to a score together.
_CHUNK = 64


def build_reader(reading: Reading, weights) -> FeatureReader:
    """Builds the reader of a reading, with its file of weights or None."""
    reader = READERS[reading.features].build(weights, reading.preprocessing)
    if reading.step is None:
        return reader
    name, step = reading.step
    return replace(
        reader, name=f"{reader.name} after {name}", prepare=lambda picture: reader.prepare(step(picture))
    )


def compare(made: Statistics, real: Statistics, reading: Reading) -> dict[str, Any]:
    """Compares two sets by a reading; the result is ready for JSON.

    Args:
        made: statistics of the generated pictures.
        real: statistics of the reference.
        reading: what to compute.

    Returns:
        "reader", "pictures" and "reference_pictures" (None: unknown); "frechet" with "frechet_interval"; "kid";
        "precision", "recall", "k" and "strict"; "cmmd"; "left_out", the measures that need features which the file of
        a set does not hold; "too_few", the number that a set has no more pictures than, though the Fréchet distance
        and KID need more: of the reader's numbers, as otherwise their covariance leaves directions out (None: enough).
    """
    width, counts = len(made.normal.mean), [one.count for one in (made, real) if one.count is not None]
    is_few = {FRECHET, KERNEL} & set(reading.measures) and min(counts, default=width + 1) <= width
    row: dict[str, Any] = {
        "reader": made.reader, "features": reading.features, "pictures": made.count, "reference_pictures": real.count,
        "too_few": width if is_few else None,
    }  # fmt: skip
    if FRECHET in reading.measures:
        row |= _frechet(made, real)
    others = [measure for measure in reading.measures if measure != FRECHET]
    if made.features is None or real.features is None:
        return row | {"left_out": others}
    pair = made.features, real.features
    if KERNEL in others:
        row["kid"] = asdict(kernel_distance(*pair))
    if MANIFOLDS in others:
        row |= asdict(precision_recall(*pair, k=reading.k, strict=reading.strict))
        row |= {"k": reading.k, "strict": reading.strict}
    if CMMD in others:
        row["cmmd"] = cmmd(*pair)
    return row | {"left_out": []}


def _frechet(made: Statistics, real: Statistics) -> dict[str, Any]:
    distance = frechet_distance(made.normal, real.normal)
    if made.features is None or made.features.shape[1] > _WIDEST:
        return {"frechet": distance}
    draws = bootstrap_draws(len(made.features), _REPLICATES)[1:]
    drawn = [frechet_distance(Normal.of_features(made.features[draw]), real.normal) for draw in draws]
    _, low, high = interval(np.array([distance, *drawn]))
    return {"frechet": distance, "frechet_interval": [low, high]}


def check_sizes(preset: Preset, made: Statistics, real: Statistics) -> None:
    """Raises LanternError if a preset wants pictures of one size and these differ."""
    sizes = [one.size for one in (made, real) if one.features is not None]
    if preset.one_size and (None in sizes or len(set(sizes)) > 1):
        shown = " and ".join(
            "several sizes" if size is None else " x ".join(map(str, size)) for size in sizes
        )
        raise LanternError(
            f"pictures and reference measure {shown}: this preset compares pictures of one size, resize first"
        )


def score_pictures(score: Score, pictures: Iterable[SetPicture], step: Step | None) -> dict[str, Any]:
    """Returns a score's mean over pictures with their prompts, ready for JSON: "name", "pictures", "mean", "interval".

    The interval, which a single picture does not have, covers 95 % if the mean is normally distributed.

    Raises:
        LanternError: values that are not finite, or no pictures.
    """
    values: list[np.ndarray] = []
    pictures = iter(pictures)
    while chunk := list(itertools.islice(pictures, _CHUNK)):
        stepped = [one.picture if step is None else step(one.picture) for one in chunk]
        values.append(np.asarray(score.of(stepped, [one.prompt for one in chunk])))
    every = np.concatenate(values).astype(np.float64) if values else np.zeros(0)
    if not len(every):
        raise LanternError("there are no pictures to score: give at least one")
    if not np.isfinite(every).all():
        raise LanternError(f"{score.name} gives values that are not finite: its weights are damaged")
    mean = float(every.mean())
    found: dict[str, Any] = {"name": score.name, "pictures": len(every), "mean": mean}
    if len(every) > 1:
        error = float(every.std(ddof=1) / np.sqrt(len(every)))
        found["interval"] = [mean - 1.96 * error, mean + 1.96 * error]
    return found
