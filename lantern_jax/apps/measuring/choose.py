"""Choosing by predicted tokens per second: what there is to choose from, and what to expect from each choice.

Axes: n pictures.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from lantern_jax.apps.measuring.paths import MAX_DEPTH, MAX_NODES, TreePath, growth, slowest
from lantern_jax.settings.tuned import Tuned

Point = TypeVar("Point")
PLAIN = "plain"
# Nodes of the trees considered, the root not counted.
SIZES = (*range(1, 13), *range(14, 33, 2), *range(36, 65, 4), *range(80, MAX_NODES, 20), MAX_NODES)
# Fields that a candidate's entry in a file has under their own names.
_WRITTEN = ("name", "nodes", "tokens_a_pass", "predicted", "measured", "speedup")
# Nodes of the windows considered, and passes of led's drafter after its first: neighbours stand beside each other.
WINDOWS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 31, 40, 56, 72)
REFINE = (0, 1, 2, 3, 4, 5)


class Guesses(NamedTuple):
    """A window: its method, nodes, and passes of a drafter over it, None for none."""

    method: str
    nodes: int
    refine: int | None = None

    def __str__(self) -> str:
        """Writes it as the text of a method."""
        return f"{self.method}:nodes={self.nodes}" + ("" if self.refine is None else f",refine={self.refine}")


@dataclass(frozen=True)
class Candidate:
    """A way of decoding, and its numbers.

    Attributes:
        name: its name, for people.
        options: options of a generation that decodes this way, as text.
        nodes: nodes per pass, root included.
        rounds: [n], rounds of pictures other than those it was chosen by.
        ms: milliseconds per round, predicted.
        substituted: [n], the share of tokens that a relaxed rule put in place of the strict rule's; empty if strict.
        distance: their mean codebook distance.
        tokens_a_pass, predicted: (value, standard error); the latter in tokens per second. Tokens per pass are None
            where the rounds are unknown, and plain decoding's stand in for them.
        measured: (tokens per second, standard error) in the confirming run; None if it took no part in that.
        speedup: (times plain decoding's speed, standard error) there.
    """

    name: str
    options: Mapping[str, str]
    nodes: int
    rounds: Float[np.ndarray, " n"]
    ms: float
    substituted: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))
    distance: float = 0.0
    tokens_a_pass: tuple[float, float] | None = (0.0, 0.0)
    predicted: tuple[float, float] = (0.0, 0.0)
    measured: tuple[float, float] | None = None
    speedup: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns plain numbers by name."""
        values = {name: getattr(self, name) for name in _WRITTEN}
        values |= {"options": dict(self.options), "ms_a_round": self.ms}
        if len(self.substituted):
            values |= {"substituted": float(self.substituted.mean()), "distance": self.distance}
        return values


@dataclass(frozen=True)
class Budget:
    """What relaxed rules may cost; without a bound there are none.

    Attributes:
        substituted: the largest share of tokens that may be put in place of the strict rule's.
    """

    substituted: float | None = None

    @property
    def allows_relaxed(self) -> bool:
        """Tells whether there is a bound."""
        return self.substituted is not None

    def holds(self, substituted: Float[np.ndarray, " n"]) -> bool:
        """Tells whether pictures kept to the budget (strict ones always do); the share's standard error counts too."""
        if not len(substituted) or self.substituted is None:
            return not len(substituted)
        error = float(np.std(substituted, ddof=1)) / len(substituted) ** 0.5 if len(substituted) > 1 else 0.0
        return float(np.mean(substituted)) + error <= self.substituted


@dataclass(frozen=True)
class Goal:
    """What a tuning is for, and how far it goes.

    Attributes:
        options: batch, guidance and sampling of the calls that it is for; None for the defaults.
        budget: what relaxed rules may cost.
        pictures: the number that trees grow on, and as many again that everything is estimated on; decoded together.
        minutes: how long it takes, unless decoding the pictures plainly and a short confirming run take longer.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    pictures: int = 16
    minutes: float = 5.0


@dataclass(frozen=True)
class Tuning:
    """What a tuning found.

    Attributes:
        tuned: the settings to be written.
        rows: all candidates: confirmed ones sorted by measured speed, then the others by predicted speed.
        default: the name of the candidate that a call decodes with without tuning; empty if Ctrl-C came first.
        is_stopped: whether Ctrl-C came before the end.
    """

    tuned: Tuned
    rows: tuple[Candidate, ...]
    default: str
    is_stopped: bool = False


def tokens_a_second(
    rounds: Float[np.ndarray, " n"], ms: float, *, tokens: int, begin: float, batch: int, error: float = 0.0
) -> tuple[float, float]:
    """Returns (tokens per second, standard error) of batches, which are done when their slowest picture is.

    Args:
        rounds: rounds of pictures, each of ``tokens`` tokens.
        ms: milliseconds per round of the batch; ``error`` is its relative standard error.
        begin: milliseconds before the first round.
    """
    spent = begin + slowest(rounds, batch) * ms
    spread = float(np.std(rounds, ddof=1) / np.mean(rounds)) / len(rounds) ** 0.5 if len(rounds) > 1 else 0.0
    rate = tokens * batch / spent * 1e3
    return rate, rate * (1 - begin / spent) * (spread**2 + error**2) ** 0.5


def best_trees(
    counts: Counter[TreePath],
    tokens: Callable[[list[TreePath]], float],
    cost: Callable[[int, tuple[int, ...]], float],
    *,
    most: int = 1,
    sizes: Iterable[int] = SIZES,
    depth: int = MAX_DEPTH,
) -> list[list[TreePath]]:
    """Returns the trees with the most tokens per millisecond, best first, no two of the same depth.

    Tries the most frequent paths under every cap on depth, cut at every size. If tokens are the sum of the counts and a
    level's cost does not depend on its width, this finds the best of all trees of these sizes; otherwise the best of
    those that take the most frequent paths.

    Args:
        counts: counts of paths.
        tokens: paths -> tokens per pass of their tree.
        cost: (nodes with the root, nodes with children in the levels 1, 2, ...) -> milliseconds per round.
        most: how many trees at most.
        sizes: nodes below the root.
        depth: depth of the deepest tree.
    """
    found: dict[int, tuple[float, list[TreePath]]] = {}
    sizes = list(sizes)
    for cap in range(1, depth + 1):
        grown = growth(counts, max(sizes), cap)
        for size in sizes:
            paths = grown[:size]
            deepest = max(map(len, paths), default=0)
            if len(paths) < size or deepest < cap:
                # Too few paths were seen, or the tree was considered under a lower cap.
                continue
            inner = {path[:-1] for path in paths}
            expanded = tuple(sum(len(node) == level for node in inner) for level in range(1, deepest))
            ms, (best, _) = cost(size + 1, expanded), found.get(deepest, (0.0, paths))
            # No round gives more than a token per level, and the bonus token.
            if (1 + deepest) / ms > best and (rate := tokens(paths) / ms) > best:
                found[deepest] = (rate, paths)
    rated = sorted(found.values(), key=lambda pair: -pair[0])[:most]
    return [sorted(paths, key=lambda path: (len(path), path)) for _, paths in rated]


def climb(
    starts: Iterable[Point],
    neighbours: Callable[[Point], Sequence[Point]],
    value: Callable[[Point], float],
    more: Callable[[], bool] = lambda: True,
) -> dict[Point, float]:
    """Climbs from the best of some points until no neighbour is better; returns the value of every point tried.

    The first better neighbour is taken. The first start is always tried, anything else only while there is ``more``
    time.
    """
    seen: dict[Point, float] = {}
    for start in starts:
        if not seen or more():
            seen[start] = value(start)
    here = max(seen, key=seen.__getitem__)
    while True:
        better = None
        for point in neighbours(here):
            if point not in seen:
                if not more():
                    return seen
                seen[point] = value(point)
            if seen[point] > seen[here]:
                better = point
                break
        if better is None:
            return seen
        here = better


def beside(scale: Sequence[Point], value: Point) -> list[Point]:
    """Returns the entries of a scale next to a value, which need not be on the scale."""
    if value not in scale:
        scale = sorted([*scale, value])
    at = list(scale).index(value)
    return [scale[i] for i in (at + 1, at - 1) if 0 <= i < len(scale)]


def neighbours(guesses: Guesses) -> list[Guesses]:
    """Returns guesses of the same method with one of their sizes changed by one notch."""
    near = [guesses._replace(nodes=nodes) for nodes in beside(WINDOWS, guesses.nodes)]
    if guesses.refine is not None:
        near += [guesses._replace(refine=refine) for refine in beside(REFINE, guesses.refine)]
    return near
