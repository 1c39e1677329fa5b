"""The standard streams of a process: that one is closed, full or unread does not make its work fail."""

import contextlib
import os
import select
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def settle() -> None:
    """Opens closed standard streams on the null device, and makes the others escape what they cannot encode.

    Call it before anything else is opened: the next file would take a closed descriptor, and prints would go into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate(_STREAMS):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, mode, errors="backslashreplace", closefd=False))
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")


def flushed() -> OSError | None:
    """Writes what was printed; returns why standard output takes no more, or None.

    Nothing more goes to a stream that takes no more: Python would complain when it exits.
    """
    failed = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failed = error if stream is sys.stdout else None
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
        except ValueError:  # Closed by a program that runs this.
            continue
    return failed


def unread() -> bool:
    """Tells whether standard output or error is a pipe without a reader."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Not a file: in a notebook, or a test.
            poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
