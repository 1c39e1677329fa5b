"""``auto``: the way of guessing, plain decoding included, that should take the least time per token. Needs no JAX.

It chooses only for strict decoding on the shared noise, where all guesses give plain decoding's tokens. The cost of a
pass is estimated from sizes and figures (``costs``), its yield from the checkpoint's statistics; what was noted from
runs here (``notes``) replaces both.
"""

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lantern_jax.checkpoints.windows import PLAIN, WindowPoint, tree_of
from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.settings.costs import Costs
from lantern_jax.settings.draftings import DRAFTINGS, ROWS

# Tokens per pass of the windows considered, for a checkpoint that says nothing about them: the demo's, from 24
# pictures. It is as hard to guess as published models.
TOKENS: Mapping[WindowPoint, float] = {
    WindowPoint(*point): tokens
    for point, tokens in {
        (2, 1, 0, 0, 0): 1.49, (3, 1, 0, 0, 0): 1.62, (5, 1, 0, 0, 0): 1.86, (8, 1, 0, 0, 0): 2.13,
        (16, 1, 0, 0, 0): 2.59, (6, 3, 2, 0, 0): 2.24, (21, 3, 2, 0, 0): 3.07, (46, 3, 2, 0, 0): 3.16,
        (3, 1, 0, 1, 0): 1.70, (3, 1, 0, 2, 0): 1.80, (5, 1, 0, 2, 0): 2.03, (7, 1, 0, 2, 0): 2.22,
        (9, 1, 0, 2, 0): 2.35, (9, 1, 0, 3, 0): 2.41, (16, 1, 0, 4, 0): 2.78, (24, 1, 0, 4, 25): 3.39,
        (40, 1, 0, 4, 56): 4.00,
    }.items()
}  # fmt: skip
# A way never timed here must promise this speed-up over the best one that was, or over plain decoding, whose cost is
# the surest: compiling another program takes longer than a few pictures.
_PROMISE = 1.15
# Plain decoding never timed here must be expected to take less than this share of the time that guesses took: on a busy
# machine they take longer than they will later, and compiling another program takes longer than a few pictures.
_SURE = 0.9
# Expected speeds whose ratio is above this count as equal.
_ALIKE = 0.95
# When many pictures are to come, a way never timed is worth a trial if it is expected to reach at least this share of
# the best
# one's speed.
_REACH = 0.9
# Relative spread of the number of rounds between pictures.
_SPREAD = 0.08


def window_name(point: WindowPoint) -> str:
    """Names a window for people."""
    if not point.window:
        return "plain"
    name = (
        f"led, window {point.window}, refine {point.passes - 1}"
        if point.passes
        else f"jacobi, window {point.window}"
    )
    if point.nodes:
        return f"{name}, {point.nodes} nodes by gaps"
    return f"{name}, {point.branches} guesses for {point.levels}" if point.levels else name


def window_knobs(point: WindowPoint) -> dict[str, Any]:
    """Returns the knobs that decode with a window."""
    if not point.window:
        return {"method": "ar"}
    knobs: dict[str, Any] = {"method": "led" if point.passes else "jacobi", "window": point.window}
    knobs |= {"nodes": point.nodes} if point.nodes else {"branches": point.branches, "levels": point.levels}
    return knobs | ({"refine": point.passes - 1} if point.passes else {})


def point_of_knobs(knobs: Mapping[str, Any]) -> WindowPoint | None:
    """Returns the window from which ``window_knobs`` made these knobs; None for any others."""
    passes = knobs["refine"] + 1 if "refine" in knobs else 0
    point = WindowPoint(
        knobs.get("window", 0),
        knobs.get("branches", 1),
        knobs.get("levels", 0),
        passes,
        knobs.get("nodes", 0),
    )
    return point if window_knobs(point) == dict(knobs) else None


def keeps_tokens(settings: Any) -> bool:
    """Tells whether these settings give plain decoding's tokens with any guesses."""
    kind = DRAFTINGS[settings.drafting]
    return settings.rule == "strict" and settings.coupling == "gumbel" and kind.nodes != ROWS


def point_of(settings: Any) -> WindowPoint | None:
    """Returns the window that strict settings on the shared noise decode with; None for any other settings."""
    if not keeps_tokens(settings):
        return None
    if settings.is_plain:
        return PLAIN
    if settings.drafting not in ("led", "jacobi"):
        return None
    passes = settings.refine + 1 if settings.drafting == "led" else 0
    nodes = settings.tree.nodes if isinstance(settings.tree, GapTree) else 0
    point = WindowPoint(settings.window, settings.branches, settings.levels, passes, nodes)
    # If a tree was given, the window's sizes are not read, and need not make a tree.
    return point if tree_of(point) == settings.tree else None


@dataclass(frozen=True)
class Way:
    """A way of guessing, and what to expect from it.

    Attributes:
        point: its window.
        nodes: nodes per pass, root included.
        tokens: tokens per pass.
        ms: milliseconds per round of the batch.
        speedup: over plain decoding.
        is_noted: whether its speed was noted from runs here.
    """

    point: WindowPoint
    nodes: int
    tokens: float
    ms: float
    speedup: float
    is_noted: bool = False

    @property
    def name(self) -> str:
        return window_name(self.point)

    @property
    def knobs(self) -> dict[str, Any]:
        return window_knobs(self.point)


@dataclass(frozen=True)
class Choice:
    """What ``auto`` chose for a call.

    Attributes:
        way: the chosen one.
        ways: all of them, the fastest first.
    """

    way: Way
    ways: tuple[Way, ...]

    @property
    def pace(self) -> float:
        """Expected milliseconds for one token of every picture in the batch."""
        return self.way.ms / self.way.tokens

    def untried(self, tried: Collection[WindowPoint]) -> Way | None:
        """Returns the best other way never timed that may be as fast as the chosen one; None if there is none."""
        ways = (way for way in self.ways if not way.is_noted and way.point not in tried)
        return next((way for way in ways if way.speedup > _REACH * self.way.speedup), None)

    @property
    def words(self) -> str:
        """What was chosen, and why, in one line."""
        plain = next(way for way in self.ways if way.point == PLAIN)

        def words(way: Way) -> str:
            said = "measured" if way.is_noted and plain.is_noted else "expected"
            gives = (
                f"{way.nodes} nodes: {way.tokens:.1f} tokens per pass at {way.ms / plain.ms:.1f} times a step"
            )
            return f"{'led' if way.point.passes else 'jacobi'}, {gives}, {way.speedup:.2f}x {said}"

        if self.way.point != PLAIN:
            return f"auto: {words(self.way)}"
        guessing = next((way for way in self.ways if way.point != PLAIN), None)
        return "auto: plain decoding" + ("" if guessing is None else f"; the best guesses, {words(guessing)}")


@dataclass(frozen=True)
class Known:
    """What was noted from runs.

    Attributes:
        tokens: tokens per pass, by window.
        ms: milliseconds for one token of every picture in a batch that ends with its slowest one, by window, at the
            requested batch size.
    """

    tokens: Mapping[WindowPoint, float] = field(default_factory=dict)
    ms: Mapping[WindowPoint, float] = field(default_factory=dict)


def slowest(batch: int, turns: float = 1.0) -> float:
    """Returns the rounds until all pictures are done, relative to those of one: a call ends with its slowest picture.

    Args:
        turns: pictures of the call per slot of its batch; all but a slot's first begin as soon as it is free.
    """
    return 1 + _SPREAD * math.sqrt(2 * math.log(batch)) / turns


def chosen(
    costs: Costs, acceptance: Mapping[WindowPoint, float], known: Known, batch: int, codes: int,
    usual: WindowPoint | None = None, turns: float = 1.0,
) -> Choice:  # fmt: skip
    """Returns the way with the least time per token.

    Args:
        costs: the expected ones; led windows use the first kind of drafter.
        acceptance: the checkpoint's tokens per pass, by window; where there are none, ``TOKENS``.
        batch: pictures decoded together.
        codes: V; no place has more guesses.
        usual: the platform's own window, measured where the library was measured: taken unless another is expected to
            be much better.
        turns: as in ``slowest``.
    """
    kind = next(iter(costs.drafts), None)
    tokens = {PLAIN: 1.0, **(acceptance or TOKENS), **known.tokens}
    fitting = (point for point in tokens if point.branches <= codes and (kind or not point.passes))
    last = slowest(batch, turns)
    made = {}
    for point in fitting:
        tree, window = point.tree, point.window
        ms = costs.window(tree, kind if point.passes else None, point.passes) if window else costs.a_pass(1)
        made[point] = tree.num_nodes, ms, ms / tokens[point] * (last if window else 1)
    # Noted times tell how far off expectations are. Where guesses were slower than plain decoding should be, plain
    # decoding is tried: perhaps it was expected to be too slow.
    noted = {
        point: ms * (last / slowest(batch) if point.window else 1)
        for point, ms in known.ms.items()
        if point in made
    }
    pace = statistics.median(ms / made[point][2] for point, ms in noted.items()) if noted else 1.0
    paces = {PLAIN: min(pace, 1.0)}
    spent = {point: noted.get(point, paces.get(point, pace) * ms) for point, (_, _, ms) in made.items()}
    ways = sorted(
        (
            Way(point, nodes, tokens[point], ms * spent[point] / each, spent[PLAIN] / spent[point], point in noted)
            for point, (nodes, ms, each) in made.items()
        ),
        key=lambda way: (-way.speedup, way.point),
    )  # fmt: skip
    plain = next(way for way in ways if way.point == PLAIN)
    sure = max([1.0, *(way.speedup for way in ways if way.is_noted)])
    least = 1 if plain.is_noted else _SURE
    best = next((way for way in ways if way.speedup > (least if way.is_noted else _PROMISE * sure)), plain)
    likely = next((way for way in ways if way.point == usual and not way.is_noted), None)
    if likely and best != plain and not best.is_noted and likely.speedup > _ALIKE * best.speedup:
        best = likely
    return Choice(best, tuple(ways))
