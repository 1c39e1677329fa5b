"""Ctrl-C and SIGTERM in training: the current step is finished first, and stages in processes of their own get both."""

import contextlib
import signal
from collections.abc import Callable, Iterator

from lantern_jax.io.interruption import Signals, standing


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], str | None]]:
    """Postpones the first signal in a block; yields a function that returns the signal's word once it has come.

    Outside ``at_work``, signals act as they do anywhere.
    """
    signals = standing() or Signals("")
    signals.deferring = True
    try:
        yield lambda: signals.came and signals.word
    finally:
        signals.deferring = False


def heard() -> int:
    """Returns the number of the signal that came; SIGINT if none is known."""
    signals = standing()
    return (signals and signals.came) or signal.SIGINT
