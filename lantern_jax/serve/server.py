"""uvicorn, as this application is run: on a socket that is bound already, and quick to end."""

import socket

import uvicorn
from starlette.applications import Starlette

# How long connections may take to end, after the worker told them.
_PARTING_SECONDS = 3


class Server(uvicorn.Server):
    """Ends streams by a word before it ends connections."""

    def __init__(self, app: Starlette):
        self._worker = app.state.worker
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                ws="none",
                server_header=False,
                proxy_headers=False,
                limit_concurrency=1000,
                timeout_graceful_shutdown=_PARTING_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn once it is to end."""
        self._worker.refuse()
        await super().shutdown(sockets)
