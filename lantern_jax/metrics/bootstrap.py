"""How far chance among pictures moves a number: bootstrap replicates and the interval they give."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Interval(NamedTuple):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap_draws(count: int, replicates: int, seed: int = 0) -> Int[np.ndarray, "1+replicates count"]:
    """Numbers 0 to ``count`` - 1 in order, then as drawn with replacement for each replicate.

    The same seed draws the same: replicates of two sets of the same prompts may be subtracted.
    """
    drawn = np.random.default_rng(seed).integers(count, size=(replicates, count))
    return np.concatenate([np.arange(count)[None], drawn])


def interval(values: Float[np.ndarray, " 1+replicates"]) -> Interval:
    """The first value with the 95 % interval of the others.

    Replicates are further away on average than the pictures they are drawn from, since they hold fewer different
    ones: they are moved so that their mean is the value.
    """
    value, drawn = values[0], values[1:]
    low, high = np.percentile(drawn, (2.5, 97.5)) + value - np.mean(drawn)
    return Interval(float(value), float(low), float(high))
