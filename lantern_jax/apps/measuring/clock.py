"""Timing: running several things in turns, and the time that a tuning has."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

# What a piece is assumed to take before one of its kind was timed: on a CPU, the demo's drafters take twice as long to
# compile as its passes, and walking pictures for ranks takes twice as long as decoding them plainly.
_ALIKE = {"draft": (2, "program"), "ranks": (2, "plain"), "pictures": (1, "plain")}


class Clock:
    """Tells how much of a time limit is left, and whether more work fits into it: no piece begins that would not end.

    A piece is predicted to take as long as the last of its kind, compiling included; one of a new kind, as long as some
    pieces of another kind.

    Args:
        seconds: the time limit, from now on.
        now: returns the time.
    """

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic):
        self._now, self._began, self._seconds = now, now(), seconds
        self._last: dict[str, float] = {}
        self._kept = 0.0

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._now() - self._began

    @property
    def remaining(self) -> float:
        """Seconds until the whole time is over."""
        return self._seconds - self.spent

    @contextlib.contextmanager
    def piece(self, kind: str) -> Iterator[None]:
        """Times a block of work, of a kind that may come again."""
        began = self._now()
        yield
        self._last[kind] = self._now() - began

    def predicted(self, **pieces: int) -> float:
        """Returns the seconds that these numbers of pieces, by kind, should take."""
        return sum(count * self._one(kind) for kind, count in pieces.items())

    def keep(self, seconds: float) -> None:
        """Reserves seconds at the end for what must come last."""
        self._kept = seconds

    def left(self, share: float = 1.0) -> float:
        """Returns the seconds until a share of the time is over or, if sooner, until what must come last begins."""
        return min(share * self._seconds, self._seconds - self._kept) - self.spent

    def _one(self, kind: str) -> float:
        if kind in self._last or kind not in _ALIKE:
            return self._last.get(kind, 0.0)
        times, other = _ALIKE[kind]
        return times * self._one(other)

    def fits(self, share: float = 1.0, **pieces: int) -> bool:
        """Tells whether these numbers of pieces, by kind, should end before a share of the time is over."""
        return self.predicted(**pieces) < self.left(share)


def alternate(
    tasks: Mapping[str, Callable[[int], T]],
    repeats: int,
    more: Callable[[int], bool] = lambda repeat: True,
) -> dict[str, list[T]]:
    """Runs all tasks in turns, in reverse order every other time; returns what each gives in each repetition.

    This way a slow minute of the machine slows all of them. A task is given the number of the repetition. Warm up and
    compile beforehand.

    Args:
        more: whether to begin a repetition.
    """
    given: dict[str, list[T]] = {name: [] for name in tasks}
    for repeat in itertools.takewhile(more, range(repeats)):
        for name in list(tasks)[:: -1 if repeat % 2 else 1]:
            given[name].append(tasks[name](repeat))
    return given
