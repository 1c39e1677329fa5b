"""Timing several things so that a slow minute of the machine slows all of them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def alternate(tasks: Mapping[str, Callable[[int], T]], repeats: int) -> dict[str, list[T]]:
    """Runs all tasks in turns, every other time backwards; returns what each gives in each repetition.

    A task is given the number of the repetition. Warm up and compile before.
    """
    given: dict[str, list[T]] = {name: [] for name in tasks}
    for repeat in range(repeats):
        for name in list(tasks)[:: -1 if repeat % 2 else 1]:
            given[name].append(tasks[name](repeat))
    return given
