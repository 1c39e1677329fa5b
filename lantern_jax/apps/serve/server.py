"""uvicorn as this application runs on it, and the server's log."""

import logging
import socket
import sys

import uvicorn
from starlette.applications import Starlette

from lantern_jax.io import errors

# Seconds in which connections must end once the worker has said that the server is stopping.
_PARTING_SECONDS = 3
# The most letters of a line of the log.
_LETTERS = 2000


class Server(uvicorn.Server):
    """A uvicorn server that ends streams with an event before it closes connections."""

    def __init__(self, app: Starlette):
        self._worker = app.state.worker
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                # Of this many uvicorn refuses the last.
                limit_concurrency=self._worker.limits.connections + 1,
                log_config=None,  # The command decides where the log goes.
                access_log=False,
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_PARTING_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the server; uvicorn calls it."""
        self._worker.refuse()
        await super().shutdown(sockets)


class Escaped(logging.Formatter):
    """Escapes what is not printable, and indents tracebacks, so that every line at the margin begins a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as lines."""
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        traceback = self.formatException(record.exc_info).splitlines() if record.exc_info else ()
        return "\n  ".join(errors.printable(one, _LETTERS) for one in (line, *traceback))


def log_to_stderr(requests: bool) -> None:
    """Shows warnings and errors of this package, uvicorn and asyncio, and a line for each request if asked to."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Escaped())
    for name in ("lantern_jax", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "lantern_jax" and requests else logging.WARNING)
