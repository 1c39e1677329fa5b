"""Clients that are slow or many: late bodies are refused, connections are bounded, and no other client waits."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.serve.running import GET, HEAD, PATH, running, said, until


@contextlib.contextmanager
def connected(server, count: int = 1) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        address = server.address
        yield [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)]


EDIT = HEAD.replace(PATH, "/v1/images/edits").replace("application/json", "multipart/form-data; boundary=x")


@pytest.mark.parametrize(("head", "rest"), [(HEAD, " " * 10), (EDIT, "")])
def test_a_body_that_comes_too_slowly_is_refused(server, head, rest):
    began = time.monotonic()
    with connected(server) as (connection,):
        connection.sendall(f"{head}Content-Length: 50\r\n\r\n".encode())
        for byte in rest.encode():
            with contextlib.suppress(ConnectionError):
                connection.sendall(bytes([byte]))
            time.sleep(0.1)
        answer = said(connection)
    seconds = server.worker.limits.body_seconds
    if not rest:  # Who sends on after the connection was closed may not get to read the answer.
        assert answer.startswith(b"HTTP/1.1 408 ") and b"send it faster" in answer
    assert seconds <= time.monotonic() - began < seconds + 5


def test_connections_are_bounded(server):
    with running(server.library(), connections=3) as small:
        with connected(small, 3) as others:
            until(lambda: len(small.connections) == 3)
            with connected(small) as (late,):
                late.sendall(GET.encode())
                assert late.recv(1000).startswith(b"HTTP/1.1 503 ")
            until(lambda: len(small.connections) == 3)
            others[0].sendall(GET.encode())
            assert others[0].recv(1000).startswith(b"HTTP/1.1 200 ")
        until(lambda: not small.connections)
        assert small.ask(method="ar").status_code == 200
