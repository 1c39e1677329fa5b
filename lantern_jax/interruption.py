"""Ctrl-C that is never lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback of the garbage collector, such as
JAX's, or in a destructor, it is printed and dropped.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def hearing() -> Iterator[Callable[[], None]]:
    """For a block of work: a function that raises KeyboardInterrupt once Ctrl-C came, also where it was dropped.

    In another thread than the main one, and where somebody else handles the signal, it does nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield lambda: None
        return
    came = threading.Event()

    def note(number, frame):
        came.set()
        raise KeyboardInterrupt

    def check() -> None:
        if came.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
