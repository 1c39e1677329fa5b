"""``auto``: the way of guessing that should take the least time per token, plain decoding among them. Needs no JAX.

Only strict decoding on the shared noise is chosen for: all guesses give plain decoding's tokens there.
What a pass costs is expected by sizes and figures (``costs``), what it yields by the checkpoint's statistics; what runs
noted here (``notes``) stands in place of both.
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

# Tokens per pass of the windows that are looked at, for a checkpoint that says nothing of them: the demo's, of 24
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
# What was never timed here must promise as much over the best of what was, or over plain decoding, whose cost is the
# surest: to compile another program takes longer than a few pictures.
_PROMISE = 1.15
# Plain decoding that was never timed here must be expected to take less than this share of what guesses took: on a busy
# machine these take longer than they will, and another program takes longer to compile than a few pictures.
_SURE = 0.9
# Expectations that differ by less are alike.
_ALIKE = 0.95
# What was never timed is worth a trial where many pictures come, if it is expected to be at least as fast as this share
# of the best.
_REACH = 0.9
# Pictures differ in their rounds by this share.
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
    """Returns the window that ``window_knobs`` made these knobs of; None for any others."""
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
    """Tells whether these settings give plain decoding's tokens with all guesses."""
    kind = DRAFTINGS[settings.drafting]
    return settings.rule == "strict" and settings.coupling == "gumbel" and kind.nodes != ROWS


def point_of(settings: Any) -> WindowPoint | None:
    """Returns the window that strict settings on the shared noise decode with; None for any others."""
    if not keeps_tokens(settings):
        return None
    if settings.is_plain:
        return PLAIN
    if settings.drafting not in ("led", "jacobi"):
        return None
    passes = settings.refine + 1 if settings.drafting == "led" else 0
    nodes = settings.tree.nodes if isinstance(settings.tree, GapTree) else 0
    point = WindowPoint(settings.window, settings.branches, settings.levels, passes, nodes)
    # A tree that was given leaves the window's sizes unread, and they need not make one.
    return point if tree_of(point) == settings.tree else None


@dataclass(frozen=True)
class Way:
    """A way of guessing, and what is expected of it.

    Attributes:
        point: its window.
        nodes: of a pass, root included.
        tokens: per pass.
        ms: of a round of the batch.
        speedup: over plain decoding.
        is_noted: whether runs noted its speed here.
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
        ways: all, the fastest first.
    """

    way: Way
    ways: tuple[Way, ...]

    @property
    def pace(self) -> float:
        """Milliseconds that a token of every picture of the batch should take."""
        return self.way.ms / self.way.tokens

    def untried(self, tried: Collection[WindowPoint]) -> Way | None:
        """Returns the best other way that may be as fast as the chosen one and was never timed; None for none."""
        ways = (way for way in self.ways if not way.is_noted and way.point not in tried)
        return next((way for way in ways if way.speedup > _REACH * self.way.speedup), None)

    @property
    def words(self) -> str:
        """What was chosen, and why, in a line."""
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
    """What runs noted.

    Attributes:
        tokens: per pass, by window.
        ms: of a token of every picture of a batch that ends with its slowest one, by window, at the batch that is
            asked for.
    """

    tokens: Mapping[WindowPoint, float] = field(default_factory=dict)
    ms: Mapping[WindowPoint, float] = field(default_factory=dict)


def slowest(batch: int, turns: float = 1.0) -> float:
    """Returns the rounds until all pictures are done, per those of a picture: a call ends with its slowest one.

    Args:
        turns: pictures of the call per slot of its batch; all but the last begin in slots that become free.
    """
    return 1 + _SPREAD * math.sqrt(2 * math.log(batch)) / turns


def chosen(
    costs: Costs, acceptance: Mapping[WindowPoint, float], known: Known, batch: int, codes: int,
    usual: WindowPoint | None = None, turns: float = 1.0,
) -> Choice:  # fmt: skip
    """Returns the way with the least time per token.

    Args:
        costs: expected ones; the first kind of drafter leads windows.
        acceptance: the checkpoint's tokens per pass, by window; where there are none, ``TOKENS``.
        batch: pictures decoded together; ``codes``: V, no fewer than a place's guesses.
        usual: the window of the platform, measured where the library was: taken where none is expected to be much
            better.
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
    # What was noted tells how far off expectations are. Where guesses were slower than plain decoding should be, it is
    # tried: perhaps it was expected to be too slow.
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
