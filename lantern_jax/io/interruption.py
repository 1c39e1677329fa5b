"""Ctrl-C and SIGTERM that are never lost, and that end a command in one line.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback of the garbage collector, such as
JAX's, or in a destructor, it is printed and dropped; in the import of a C++ module it may cause a crash. Here it is
raised again a little later, or after the import. A command or script calls ``listen`` before it imports anything that
takes time, and works in ``at_work``. Little is imported here, so that little time passes before ``listen``.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# What a signal does where nothing else handles it.
_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
# Seconds until an interrupt is raised again.
_LATER = 0.02
_IMPORTING = "<frozen importlib._bootstrap>"


class Signals:
    """Handles both signals for one command.

    Before work begins the first one ends the process. Later each raises KeyboardInterrupt once no module is being
    imported, except the first while ``deferring`` and a SIGTERM that is not the first signal, which ends the
    process.

    Attributes:
        name: of the command.
        deferring: whether the first signal waits until ``came`` is checked.
        came: the first signal's number, None before it.
    """

    def __init__(self, name: str, working: bool = False):
        self.name, self.working, self.deferring = name, working, False
        self.came: int | None = None
        self._again = False

    @property
    def word(self) -> str:
        """What the signal did to the command."""
        return WORDS[self.came]

    @property
    def status(self) -> int:
        """The exit status after the signal, as in shells."""
        return 128 + self.came

    def __call__(self, number: int, frame: FrameType | None) -> None:
        again, self._again = self._again, False
        first, self.came = self.came is None, self.came or number
        if not self.working or (number == signal.SIGTERM and not first and not again):
            with contextlib.suppress(OSError):
                os.write(2, f"{self.name}: {WORDS[number]}\n".encode())
            os._exit(128 + number)
        if first and self.deferring:
            return
        while frame is not None and frame.f_code.co_filename != _IMPORTING:
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt
        self._later()

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal has come."""
        if self.came is not None:
            raise KeyboardInterrupt

    def dropped(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Raises again, as ``sys.unraisablehook``, an interrupt that Python would print and drop."""
        if self.came is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
        else:
            self._later()

    def _later(self) -> None:
        # The threading module has locks, which the main thread may hold.
        _thread.start_new_thread(self._raise_again, ())

    def _raise_again(self) -> None:
        time.sleep(_LATER)
        if self.working:
            self._again = True
            if hasattr(signal, "pthread_kill"):  # Wakes what sleeps.
                signal.pthread_kill(threading.main_thread().ident, self.came)
            else:
                _thread.interrupt_main(self.came)


def listen(name: str) -> Signals:
    """Makes both signals end this process with a line and their status; see ``at_work``.

    A signal that is ignored, or that something else handles, stays so; outside the main thread both do.
    """
    signals = standing() or Signals(name)
    signals.name = name
    if _in_main_thread():
        for number, usual in _USUAL.items():
            if signal.getsignal(number) is usual:
                signal.signal(number, signals)
    return signals


@contextlib.contextmanager
def at_work(name: str) -> Iterator[Signals]:
    """Makes both signals raise KeyboardInterrupt in a block; the caller reports that in one line."""
    before = {number: signal.getsignal(number) for number in _USUAL}
    signals, hook = listen(name), sys.unraisablehook
    signals.working, sys.unraisablehook = True, signals.dropped
    with _set_back(before):
        try:
            yield signals
        finally:
            signals.working, sys.unraisablehook = False, hook


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Gives both signals back to Python in a block, for code that handles them itself."""
    signals = standing()
    ours = {number: signals for number in _USUAL if signals and signal.getsignal(number) is signals}
    with _set_back(ours):
        for number in ours:
            signal.signal(number, _USUAL[number])
        yield


@contextlib.contextmanager
def hearing() -> Iterator[Callable[[], None]]:
    """Yields a function that raises KeyboardInterrupt once Ctrl-C has come in the block, even if Python dropped it.

    It does nothing outside the main thread, or if something else handles the signal.
    """
    signals = standing()
    if signals is None and _in_main_thread() and signal.getsignal(signal.SIGINT) is _USUAL[signal.SIGINT]:
        signals = Signals("", working=True)
        with _set_back({signal.SIGINT: signal.signal(signal.SIGINT, signals)}):
            yield signals.check
    else:
        yield signals.check if signals else lambda: None


@contextlib.contextmanager
def _set_back(handlers: dict[int, Callable]) -> Iterator[None]:
    try:
        yield
    finally:
        for number, handler in handlers.items() if _in_main_thread() else ():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def standing() -> Signals | None:
    """Returns the object that handles the signals now; None if there is none, and outside the main thread."""
    handlers = [signal.getsignal(number) for number in _USUAL if _in_main_thread()]
    return next((handler for handler in handlers if isinstance(handler, Signals)), None)
