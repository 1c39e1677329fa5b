"""uvicorn as this application runs on it: its connections, and the server's log.

uvicorn bounds neither how long headers may take nor how many connections one client has. Here a connection either works
(its request has arrived, its answer is not yet taken) or waits for the rest of a request. A waiting one delays no
other: its time is short, and it makes room for new ones.
"""

import asyncio
import contextlib
import http
import ipaddress
import logging
import socket
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from lantern_jax.apps.serve.answers import encode_json
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.limits import Limits, Refused
from lantern_jax.io import errors

# The time in which connections must end after the worker has told them that the server is stopping.
_PARTING_SECONDS = 3
# Connections that may come in one turn of the loop.
_BACKLOG = 256
# Other open files.
_OTHER_FILES = 128
# The most letters of a line of the log.
_LETTERS = 2000


class Connections(dict["Connection", str]):
    """The connections of a server and their addresses, within ``limits``; the one that has waited longest is first."""

    def __init__(self, limits: Limits, counters: Counters):
        self.limits, self.counters = limits, counters

    def enter(self, connection: "Connection", address: str) -> None:
        """Adds a connection of an address; if there are too many, of it or in all, ends the one that waited longest.

        Raises:
            Refused: all of them are working.
        """
        most = self.limits.address_connections
        ours = [one for one, other in self.items() if other == address]
        if len(ours) >= most and not self._made_room(ours):
            message = f"{most} requests from this address are being answered: wait for one of them"
            raise Refused(429, message, code="too_many_connections")
        if len(self) >= self.limits.connections and not self._made_room(self):
            raise Refused(503, f"{len(self)} requests are being answered: ask again later")
        self[connection] = address

    def wait(self, connection: "Connection") -> None:
        """Notes that a connection, if it is here, begins to wait."""
        if connection in self:
            self[connection] = self.pop(connection)

    def _made_room(self, among: Iterable["Connection"]) -> bool:
        """Ends the first of these that waits; tells whether there was one."""
        oldest = next((one for one in among if not one.works), None)
        if oldest is not None:
            del self[oldest]
            oldest.end("room")
        return oldest is not None


class Connection(H11Protocol):
    """A connection that ends when what it waits for does not come in time."""

    def __init__(self, *arguments: Any, connections: Connections, **options: Any):
        super().__init__(*arguments, **options)
        self._connections, limits = connections, connections.limits
        self._seconds = {
            "headers": limits.header_seconds,
            # The application refuses a late body a second earlier, unless it has answered.
            "body": limits.body_seconds + 1,
            "answer": limits.seconds + limits.taking_seconds,
            "idle": limits.idle_seconds,
        }
        # What is waited for, in which cycle of uvicorn's, and its timer.
        self._awaited: tuple[str, Any] = ("", None)
        self._timer: asyncio.TimerHandle | None = None
        self._end = 0.0

    @property
    def works(self) -> bool:
        """Whether its request has arrived and the client has not taken the whole answer."""
        return self._awaited[0] == "answer" or self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._await("headers")
        try:
            self._connections.enter(self, address_of(self.client))
        except Refused as refusal:
            self._refuse(refusal)

    def data_received(self, data: bytes) -> None:
        """Reads what arrived."""
        if self.transport.is_closing():
            return
        if self._awaited[0] == "idle":
            self._await("headers")
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        """Continues after an answer, perhaps with a request that has arrived already."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        self._settle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer and removes the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._connections.pop(self, None)
        super().connection_lost(exc)

    def end(self, why: str) -> None:
        """Ends it without an answer."""
        self._connections.counters.ended[why] += 1
        self.transport.abort()

    def _settle(self) -> None:
        """Waits for what must come next; the arrival of a part does not extend the time."""
        if self.transport.is_closing():
            return  # The client has the time that is left to take the answer.
        if self.conn.their_state is h11.SEND_BODY:
            self._await("body")
        elif self.cycle is not None and not self.cycle.response_complete:
            self._await("answer")
        elif self._awaited[0] != "headers":
            self._await("idle")

    def _await(self, what: str) -> None:
        if self._awaited == (what, self.cycle):
            return
        self._awaited = (what, self.cycle)
        now, seconds = self.loop.time(), self._seconds[what]
        if what in ("headers", "idle"):
            self._connections.wait(self)
        if what != "idle":
            self._end = now + seconds
        self._set_timer(seconds)

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        what, _ = self._awaited
        if what == "idle" and self.transport.get_write_buffer_size():
            # The client is still taking the answer, for which it has as long as the request had.
            if self.loop.time() < self._end:
                self._set_timer(self._seconds["idle"])
            else:
                self.end("answer")
        elif what == "headers" and self.conn.trailing_data[0] and not self.transport.is_closing():
            self._connections.counters.ended[what] += 1
            limit = self._seconds[what]
            self._refuse(Refused(408, f"the headers did not come within {limit:g} seconds: send them faster"))
        else:
            self.end(what)

    def _refuse(self, refusal: Refused) -> None:
        """Answers where there is no request to serve, and ends the connection."""
        self._connections.counters.requests[refusal.status] += 1
        body, phrase = encode_json(refusal.to_json()), http.HTTPStatus(refusal.status).phrase
        head = f"HTTP/1.1 {refusal.status} {phrase}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
        self._set_timer(self._seconds["headers"])


def address_of(client: tuple[str, int] | None) -> str:
    """Returns the key by which a client's connections are counted: its address, or for IPv6 its network of 64 bits,
    of which one client has all addresses."""
    host = "" if client is None else client[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address.packed, 64), strict=False))


class Server(uvicorn.Server):
    """A uvicorn server that ends streams with an event before it closes connections."""

    def __init__(self, app: Starlette):
        self._worker = app.state.worker
        super().__init__(
            uvicorn.Config(
                app,
                # These connections limit themselves: limit_concurrency would count those that only wait.
                http=partial(Connection, connections=app.state.connections),
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
        """Ends the server; uvicorn calls it."""
        self._worker.refuse()
        await super().shutdown(sockets)


def connections_of_files(wanted: int) -> int:
    """Returns how many connections this process can have, at most ``wanted``: each is an open file. Raises the
    system's soft limit of open files if it is too low."""
    try:
        import resource
    except ImportError:  # On Windows sockets are not files.
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


class Escaped(logging.Formatter):
    """Escapes what is not printable, and indents tracebacks, so that every line at the margin begins a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as lines."""
        lines = [errors.printable(f"{record.levelname.lower()}: {record.getMessage()}", _LETTERS)]
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            lines += [f"  {errors.printable(line, _LETTERS)}" for line in traceback.splitlines()]
        return "\n".join(lines)


class Lines(logging.Formatter):
    """Makes a JSON object of every record: time, level, message, and the fields that a program reads."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as one line."""
        told: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": errors.printable(record.getMessage(), _LETTERS),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return encode_json(told).decode("ascii")


def log_to_stderr(log: str = "off") -> None:
    """Shows warnings and errors of this package and of uvicorn, and requests unless ``log`` is off."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines() if log == "json" else Escaped())
    levels = {"lantern_jax": logging.WARNING if log == "off" else logging.INFO, "uvicorn": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
