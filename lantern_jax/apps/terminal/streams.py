"""The standard streams of a process: that one is full, unread or of another encoding does not make its work fail."""

import os
import sys


def settle() -> None:
    """Makes standard output and error escape what they cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Closed by whoever started the process.
            stream.reconfigure(errors="backslashreplace")


def flushed() -> OSError | None:
    """Writes what was printed; returns why standard output takes no more, or None.

    Nothing more goes to a stream that takes no more: Python would complain when it exits.
    """
    failed = None
    for stream in filter(None, (sys.stderr, sys.stdout)):
        try:
            stream.flush()
        except OSError as error:
            failed = error if stream is sys.stdout else None
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except ValueError:  # Closed by a program that runs this.
            continue
    return failed
