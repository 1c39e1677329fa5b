"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt, and end a command in one line.

A process calls ``listen`` before it imports anything that takes time, and works in ``at_work``. Python drops an
interrupt that arrives in a destructor, so long work calls ``raise_if_signalled`` between its pieces. In the import of a
C++ module one may cause a crash, so it ends the process there.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# What a signal does where nothing else handles it.
_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Signals:
    """Handles both signals for one command by a KeyboardInterrupt.

    Attributes:
        name: of the command.
        ends: whether they end the process while modules are imported.
        deferring: whether the first signal waits until ``came`` is checked.
        came: the first signal's number, None before it.
    """

    def __init__(self, name: str, ends: bool = False):
        self.name, self.ends, self.deferring = name, ends, False
        self.came: int | None = None

    @property
    def word(self) -> str:
        """What the signal did to the command."""
        return WORDS[self.came or signal.SIGINT]

    @property
    def status(self) -> int:
        """The exit status after the signal, as in shells."""
        return 128 + (self.came or signal.SIGINT)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.came = self.came is None, self.came or number
        if first and self.deferring:
            return
        if self.ends and _imports(frame):
            os.write(2, f"{self.name}: {self.word}\n".encode())
            os._exit(self.status)
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def listen(name: str, ends: bool = True) -> Signals:
    """Makes both signals raise KeyboardInterrupt, or end this process with a line in an import.

    A signal that is ignored, or that something else handles, stays so; outside the main thread both do.
    """
    signals = standing() or Signals(name, ends)
    signals.name = name
    for number, usual in _USUAL.items() if _in_main_thread() else ():
        if signal.getsignal(number) is usual:
            signal.signal(number, signals)
    return signals


@contextlib.contextmanager
def at_work(name: str) -> Iterator[Signals]:
    """Makes both signals raise KeyboardInterrupt in a block; the caller reports that in one line."""
    before = {number: signal.getsignal(number) for number in _USUAL}
    try:
        yield listen(name, ends=False)
    finally:
        for number, handler in before.items() if _in_main_thread() else ():
            signal.signal(number, handler)


def raise_if_signalled() -> None:
    """Raises KeyboardInterrupt if a signal has come to a command at work, even if that was dropped."""
    signals = standing()
    if signals is not None and signals.came is not None:
        raise KeyboardInterrupt


@contextlib.contextmanager
def as_the_end() -> Iterator[None]:
    """Takes either signal for the usual end of a block."""
    with contextlib.suppress(KeyboardInterrupt):
        yield
    signals = standing()
    if signals is not None:
        signals.came = None


def standing() -> Signals | None:
    """Returns the object that handles the signals now; None if there is none, and outside the main thread."""
    handlers = [signal.getsignal(number) for number in _USUAL if _in_main_thread()]
    return next((handler for handler in handlers if isinstance(handler, Signals)), None)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
