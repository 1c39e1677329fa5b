"""Lines that commands print, and what they say while they work. A text may come from a file or be its name, so nothing
in it steers the terminal.

``console`` does the same for tables.
"""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator

from lantern_jax.io import errors

# Seconds until the first line about work, until the next one of the same kind where lines cannot be overwritten, and
# between two looks at it.
FIRST, EVERY, _LOOK = 0.5, 5.0, 0.25

# A text, or a function that returns the current one; None for nothing.
Text = str | Callable[[], str | None] | None


def say(line: str, *, error: bool = False) -> None:
    """Prints a line to stdout, or stderr, as ``errors.printable`` shows it; what stderr does not take is lost."""
    with hidden():
        if error:
            _write(f"{errors.printable(line)}\n")
        else:
            print(errors.printable(line), flush=True)


@contextlib.contextmanager
def telling(text: Text) -> Iterator[Callable[[Text], None]]:
    """Says on stderr what a block of work is about once it takes long; yields a function that changes the text.

    On a terminal that is one line, which is removed at the end; elsewhere a line every few seconds. Inside another such
    block the text takes the place of the outer one's for good.
    """
    global _teller
    outer = _teller
    teller = _teller = outer or _Teller()
    teller.tell(text)
    try:
        yield teller.tell
    finally:
        teller.tell(None)
        if outer is None:
            teller.end()
            _teller = None


def leave_to_another() -> None:
    """Stops saying anything about work: another process does that."""
    global _leaves
    _leaves = True


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Removes the line about work while something else is printed."""
    if _teller is None:
        yield
    else:
        with _teller.hidden():
            yield


class _Teller(threading.Thread):
    """Shows a text, which others set."""

    def __init__(self) -> None:
        super().__init__(name="lantern-telling", daemon=True)
        self._shows, self._lock, self._ended = False, threading.RLock(), threading.Event()
        self.tell(None)
        self.start()

    def tell(self, text: Text) -> None:
        self._text, self._since = text, time.monotonic()

    def end(self) -> None:
        self._ended.set()
        self.join()
        with self.hidden():
            pass

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        with self._lock:
            if self._shows:
                self._shows = False
                _write("\r\x1b[2K")
            yield

    def run(self) -> None:
        kind, due, wait = "", 0.0, FIRST
        while not self._ended.wait(wait):
            wait = _LOOK
            with self._lock, contextlib.suppress(OSError, ValueError):
                text, now = self._text, time.monotonic()
                line = text() if callable(text) else text and f"{text} ({now - self._since:.0f} s)"
                if _leaves or not line:
                    continue
                line = errors.printable(line)
                if sys.stderr.isatty():
                    self._shows = True
                    _write(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")
                elif line.split()[0] != kind or now >= due:
                    kind, due = line.split()[0], now + EVERY
                    _write(f"lantern: {line}\n")


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


_teller: _Teller | None = None
_leaves = False
