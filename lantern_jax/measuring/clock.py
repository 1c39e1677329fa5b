"""Timing: several things in turns, and the time that a tuning has."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

# What a piece is like before one of its kind was timed: on a CPU, the demo's drafters compile for twice as long as its
# passes, and walking pictures for ranks takes twice as long as decoding them plainly.
_ALIKE = {"draft": (2, "program"), "ranks": (2, "plain"), "pictures": (1, "plain")}


class Clock:
    """Tells what is left of some seconds, and whether more pieces of work fit into it: none begins that would not end.

    A piece is predicted to take as long as the last of its kind, compiling included; of a new kind, as long as
    some pieces of another one.

    Args:
        seconds: from now on.
        now: the time.
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
        """Seconds until all of the time is over."""
        return self._seconds - self.spent

    @contextlib.contextmanager
    def piece(self, kind: str) -> Iterator[None]:
        """Times a block of work, of a kind of which more may come."""
        began = self._now()
        yield
        self._last[kind] = self._now() - began

    def predicted(self, **pieces: int) -> float:
        """Returns the seconds that these numbers of pieces of some kinds take."""
        return sum(count * self._one(kind) for kind, count in pieces.items())

    def keep(self, seconds: float) -> None:
        """Keeps seconds at the end for what must come last."""
        self._kept = seconds

    def left(self, share: float = 1.0) -> float:
        """Returns the seconds until a share of the time is over, and no more than until what must come last begins."""
        return min(share * self._seconds, self._seconds - self._kept) - self.spent

    def _one(self, kind: str) -> float:
        if kind in self._last or kind not in _ALIKE:
            return self._last.get(kind, 0.0)
        times, other = _ALIKE[kind]
        return times * self._one(other)

    def fits(self, share: float = 1.0, **pieces: int) -> bool:
        """Tells whether these numbers of pieces of some kinds end before a share of the time is over."""
        return self.predicted(**pieces) < self.left(share)


def alternate(
    tasks: Mapping[str, Callable[[int], T]],
    repeats: int,
    more: Callable[[int], bool] = lambda repeat: True,
) -> dict[str, list[T]]:
    """Runs all tasks in turns, every other time backwards; returns what each gives in each repetition.

    So a slow minute of the machine slows all. A task is given the number of the repetition. Warm up and compile before.

    Args:
        more: whether a repetition is begun.
    """
    given: dict[str, list[T]] = {name: [] for name in tasks}
    for repeat in itertools.takewhile(more, range(repeats)):
        for name in list(tasks)[:: -1 if repeat % 2 else 1]:
            given[name].append(tasks[name](repeat))
    return given
