"""uvicorn, as this application is run: on a socket that is bound already, and quick to end."""

import contextlib
import socket
from functools import partial

import uvicorn
from starlette.applications import Starlette

from lantern_jax.serve.connections import Connection

# How long connections may take to end, after the worker told them.
_PARTING_SECONDS = 3
# Connections that wait to be taken in: so many may come in one turn of the loop.
_BACKLOG = 256
# Files that are open besides.
_OTHER_FILES = 128


class Server(uvicorn.Server):
    """Ends streams by a word before it ends connections."""

    def __init__(self, app: Starlette):
        self._worker = app.state.worker
        super().__init__(
            uvicorn.Config(
                app,
                # It bounds connections itself: a limit_concurrency would count those that only wait.
                http=partial(Connection, crowd=app.state.crowd),
                backlog=_BACKLOG,
                log_config=None,  # The command decides where the log goes.
                access_log=False,
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_PARTING_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn once it is to end."""
        self._worker.refuse()
        await super().shutdown(sockets)


def connections_of_files(wanted: int) -> int:
    """How many connections this process can have, at most as many as are wanted: each is an open file. The system's
    soft limit of these is raised where it is too low for that."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are no files.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + _BACKLOG + _OTHER_FILES
    if soft < needed:
        best = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
            soft = best
    return max(1, min(wanted, soft - _BACKLOG - _OTHER_FILES))
