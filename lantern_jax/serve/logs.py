"""The server's log, on standard error: a record's first line is its own, and nothing in it steers a terminal."""

import logging
import sys

from lantern_jax.io import errors

_LETTERS = 2000


class Escaped(logging.Formatter):
    """Escapes what is no text; lines of a traceback are indented, so that none looks like another record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as lines."""
        lines = [errors.printable(f"{record.levelname.lower()}: {record.getMessage()}", _LETTERS)]
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            lines += [f"  {errors.printable(line, _LETTERS)}" for line in traceback.splitlines()]
        return "\n".join(lines)


def log_to_stderr() -> None:
    """Shows warnings and errors of this package and of uvicorn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Escaped())
    for name in ("lantern_jax", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
