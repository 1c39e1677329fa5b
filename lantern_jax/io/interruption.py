"""Ctrl-C and SIGTERM that are never lost, and that end a command in one line.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback of the garbage collector, such as
JAX's, or in a destructor, it is printed and dropped: here it is raised again a little later. In the import of a module
of C++ it may crash: here it is raised after imports. A command or script calls ``listen`` before it imports anything
that takes time, and works in ``at_work``. Little is imported here, so that there is little time before ``listen``.
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

from lantern_jax.io import streams

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# What a signal does where nobody asked for anything else.
_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
# After which an interrupt is raised again.
_LATER_SECONDS = 0.02
_IMPORTING = "<frozen importlib._bootstrap>"


class Signals:
    """Handles both signals for one command.

    Before work has begun the first one ends the process at once. Then each raises KeyboardInterrupt, once no module is
    being imported, but for the first in a block of ``deferred`` and for a SIGTERM that is not the first signal, which
    ends the process at once.

    Attributes:
        name: of the command.
        came: the first signal's number, None before it.
    """

    def __init__(self, name: str):
        self.name = name
        self.came: int | None = None
        self.working = False
        self.deferring = False
        self._again = False

    @property
    def word(self) -> str:
        """What the signal that came makes of the command."""
        return WORDS[self.came]

    @property
    def status(self) -> int:
        """The exit status after it, as shells have it."""
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
        if _importing(frame):
            self._later()
        else:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt once a signal came."""
        if self.came is not None:
            raise KeyboardInterrupt

    def dropped(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """``sys.unraisablehook``: an interrupt that Python would print and drop is raised again a little later."""
        if self.came is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            return
        self._later()

    def _later(self) -> None:
        # The module threading has locks, which the main thread may hold.
        _thread.start_new_thread(self._raise_again, ())

    def _raise_again(self) -> None:
        time.sleep(_LATER_SECONDS)
        if self.working:
            self._again = True
            if hasattr(signal, "pthread_kill"):  # Wakes what sleeps.
                signal.pthread_kill(threading.main_thread().ident, self.came)
            else:
                _thread.interrupt_main(self.came)


def listen(name: str) -> Signals:
    """From here on both signals end this process at once with a line and their status; see ``at_work``.

    A signal that somebody else handles, or that is ignored, stays theirs; so do both in another thread than the main
    one.
    """
    signals = _standing() or Signals(name)
    signals.name = name
    if threading.current_thread() is threading.main_thread():
        for number, usual in _USUAL.items():
            if signal.getsignal(number) is usual:
                signal.signal(number, signals)
    return signals


def listen_to_script() -> None:
    """``listen`` for ``python -m PACKAGE.SCRIPT``, where a package that begins to be imported says so; else nothing."""
    if sys.argv[0] == "-m":  # Python looks for the script; what it was called with ends alike.
        streams.settle()
        listen(sys.orig_argv[-len(sys.argv)])


@contextlib.contextmanager
def at_work(name: str) -> Iterator[Signals]:
    """A block in which both signals raise KeyboardInterrupt; the caller says that in one line."""
    before = {number: signal.getsignal(number) for number in _USUAL}
    signals, hook = listen(name), sys.unraisablehook
    signals.working, sys.unraisablehook = True, signals.dropped
    try:
        yield signals
    finally:
        signals.working, sys.unraisablehook = False, hook
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], str | None]]:
    """A block in which the first signal is noted, not raised: a function that names it once it came, in a word.

    Where no ``at_work`` stands around it signals do what they do anywhere.
    """
    signals = _standing()
    if signals is None:
        yield lambda: None
        return
    signals.deferring = True
    try:
        yield lambda: signals.came and signals.word
    finally:
        signals.deferring = False


def heard() -> int:
    """The number of the signal that came; SIGINT where nothing is known of one."""
    signals = _standing()
    return signals.came if signals is not None and signals.came is not None else signal.SIGINT


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """A block in which both signals do what they usually do, for what handles them by itself."""
    signals = _standing()
    ours = [number for number in _USUAL if signals is not None and signal.getsignal(number) is signals]
    for number in ours:
        signal.signal(number, _USUAL[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signals)


@contextlib.contextmanager
def hearing() -> Iterator[Callable[[], None]]:
    """For a block of work: a function that raises KeyboardInterrupt once Ctrl-C came, also where it was dropped.

    In another thread than the main one, and where somebody else handles the signal, it does nothing.
    """
    signals = _standing()
    if signals is not None:
        yield signals.check
        return
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield lambda: None
        return
    heard = Signals("")
    heard.working = True
    signal.signal(signal.SIGINT, heard)
    try:
        yield heard.check
    finally:
        signal.signal(signal.SIGINT, before)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None


def _standing() -> Signals | None:
    """Who handles the signals now, if it is one of these; in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        for number in _USUAL:
            handler = signal.getsignal(number)
            if isinstance(handler, Signals):
                return handler
    return None
