"""Clients that are slow, silent or many: their connections end, and no other client waits for them."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lantern_jax.apps.serve import server as serving
from lantern_jax.apps.serve.forms import read_start
from lantern_jax.apps.serve.server import address_of
from tests.hostile.requests import GET, HEAD, PATH
from tests.serve.running import QUEUE, Gate, in_threads, running, said, until

POST = f"{HEAD}Content-Length: 50\r\n\r\n"
SECONDS = {"header_seconds": 0.5, "body_seconds": 0.8, "idle_seconds": 2.5}
# Seconds after which each limit ends a connection, at least and at most: the most is below the longest limit, the least
# above the shortest, and the gap leaves time for a busy machine. If a body is refused before its time is up, the
# connection is kept for a second more; what cannot be a request ends immediately.
ENDS = {
    "none": (0, 2.4),
    "header": (0.5, 2.4),
    "body": (0.8, 2.4),
    "body of the refused": (1.8, 3.4),
    "idle": (2.5, 10),
}


@pytest.fixture(scope="module")
def hasty(server):
    with running(server.library(), **SECONDS) as hasty:
        yield hasty


@contextlib.contextmanager
def connected(server, count: int = 1) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        address = server.address
        yield [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)]


def is_open(connection: socket.socket) -> bool:
    """Tells whether the server has kept a connection open; reads what it sent."""
    while select.select([connection], [], [], 0)[0]:
        try:
            if not connection.recv(65536):
                return False
        except ConnectionError:
            return False
    return True


def dribble(connection: socket.socket, text: str, pause: float = 0.1) -> None:
    """Sends a byte now and then until the server ends the connection."""
    began = time.monotonic()
    for byte in text.encode() * 100:
        if not is_open(connection):
            break
        with contextlib.suppress(ConnectionError):
            connection.sendall(bytes([byte]))
        time.sleep(pause)
        if time.monotonic() - began > 10:
            pytest.fail("it was never ended")


LONG = "GET / HTTP/1.1\r\nX-Long: " + "a" * 100


@pytest.mark.parametrize(("limit", "first", "then"), [
    pytest.param("header", "", "", id="silent"),
    pytest.param("header", "", LONG, id="headers"),
    pytest.param("none", "", "\r\n", id="lines"),
    pytest.param("idle", GET, "", id="idle"),
    pytest.param("header", GET, LONG, id="next headers"),
    pytest.param("none", GET, "\r\n", id="next lines"),
    pytest.param("body", POST, "", id="no body"),
    pytest.param("body", POST, " " * 50, id="body"),
    # It is answered before its body arrives, which is then never read.
    pytest.param("body of the refused", POST.replace(PATH, "/health"), " " * 50, id="late body"),
    pytest.param("body of the refused", POST.replace("application/json", "text/plain"), "", id="no rest"),
])  # fmt: skip
def test_slow_connections_are_ended(hasty, limit, first, then):
    """By the limit that they exceed."""
    began = time.monotonic()
    with connected(hasty) as (connection,):
        connection.sendall(first.encode())
        if then:
            dribble(connection, then)
        else:
            said(connection)  # Until it ends.
    least, most = ENDS[limit]
    assert least <= time.monotonic() - began < most
    hasty.wait_for(connections=1)


def test_split_and_pipelined_requests_are_answered(hasty):
    """A client in time is not slow, each request has its own time, and late headers get an answer that says so."""
    with connected(hasty) as (connection,):
        for _ in range(4):
            for part in (GET[:10], GET[10:30], GET[30:]):
                connection.sendall(part.encode())
                time.sleep(0.1)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        last = GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        connection.sendall((GET * 2 + last).encode())
        assert said(connection).count(b"HTTP/1.1 200 ") == 3
    with connected(hasty) as (connection,):
        connection.sendall(GET[:20].encode())
        answer = said(connection)
    assert b"HTTP/1.1 408 " in answer and b"headers" in answer
    assert hasty.metrics()['lantern_connections_ended_total{why="headers"}'] >= 1


def test_a_client_that_does_not_take_its_answer_is_ended(server):
    limits = SECONDS | {"idle_seconds": 0.5, "seconds": 0.5, "taking_seconds": 0.5}
    with running(server.library(), **limits) as hasty, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(hasty.address)
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(2000):
                connection.send(GET.replace("/health", "/").encode() * 10)
        until(lambda: hasty.metrics().get('lantern_connections_ended_total{why="answer"}', 0) == 1)


def test_silent_connections_make_room(server):
    for limits in ({"address_connections": 20}, {"connections": 20}):
        with running(server.library(), header_seconds=60, **limits) as small, connected(small, 60) as silent:
            until(lambda silent=silent: sum(map(is_open, silent)) <= 20)
            began = time.monotonic()
            assert small.client.get("/health").status_code == 200
            assert small.ask(method="ar").status_code == 200
            assert time.monotonic() - began < 10
            assert not any(map(is_open, silent[:40])) and sum(map(is_open, silent)) >= 18
            metrics = small.metrics()
            assert metrics["lantern_connections"] <= 20
            assert metrics['lantern_connections_ended_total{why="room"}'] >= 40


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"address_connections": 3}, 429), ({"connections": 3}, 503)],
    ids=["address", "all"],
)
def test_working_connections_are_not_ended(server, limits, status):
    with pytest.MonkeyPatch.context() as monkeypatch, running(server.library(), **limits) as small:
        gate = Gate(small.engine, monkeypatch)

        def one_too_many() -> bytes:
            until(lambda: small.worker.waiting + small.worker.decoding == 3)
            until(lambda: len(small.connections) == 3 and all(one.works for one in small.connections))
            with connected(small) as (connection,):
                answer = said(connection)
            gate.open()
            return answer

        *answers, refused = in_threads([lambda: small.ask(method="ar").status_code] * 3 + [one_too_many])
        assert refused.startswith(b"HTTP/1.1 %d " % status) and b'"error"' in refused
        assert answers == [200] * 3
        assert small.client.get("/health").status_code == 200


def test_addresses_of_one_client():
    same = (
        ["10.0.0.1", "::ffff:10.0.0.1"],
        ["::ffff:10.0.0.2"],
        ["2001:db8::1", "2001:db8::2:1"],
        ["2001:db8:0:1::1"],
    )
    groups = [{address_of((name, port)) for port, name in enumerate(names)} for names in same]
    assert [len(group) for group in groups] == [1] * 4 and len(set.union(*groups)) == 4
    assert groups[0] == {"10.0.0.1"} and address_of(None) == "" and address_of(("socket", 0)) == "socket"


def test_the_limit_of_open_files_bounds_connections(monkeypatch):
    resource = pytest.importorskip("resource")
    limit, raised = [256, 600], []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: raised.append(both))
    assert serving.connections_of_files(1000) == 600 - 384 and raised == [(600, 600)]
    limit[:] = [256, resource.RLIM_INFINITY]
    assert serving.connections_of_files(1000) == 1000 and raised[-1] == (1384, resource.RLIM_INFINITY)
    limit[:] = [100, 100]
    assert serving.connections_of_files(1000) == 1
    limit[:] = [resource.RLIM_INFINITY] * 2
    assert serving.connections_of_files(1000) == 1000 and len(raised) == 3


def test_a_form_waits_only_while_its_client_does(server, monkeypatch):
    """A full queue refuses a form before its body arrives, and a form whose client has left is not read."""
    started, go_on = [], threading.Event()

    def read(*given):
        started.append(1)
        assert go_on.wait(20)
        return read_start(*given)

    head = "POST /v1/images/edits HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    whole = f"{head}Content-Length: 5\r\n\r\n--x--".encode()
    gone = 'lantern_requests_total{status="0"}'
    before = server.metrics().get(gone, 0)
    monkeypatch.setattr("lantern_jax.apps.serve.application.read_start", read)
    with contextlib.ExitStack() as open_ones:
        connections = [socket.create_connection(server.address, timeout=20) for _ in range(QUEUE + 1)]
        for connection in connections:
            open_ones.callback(connection.close)
        *waiting, late = connections
        for connection in waiting:
            connection.sendall(whole)
        server.wait_for(queue_length=QUEUE)
        late.sendall(f"{head}Content-Length: 5\r\n\r\n".encode())
        assert late.recv(1000).startswith(b"HTTP/1.1 429 ")
        until(lambda: len(started) == 2)
    server.wait_for(queue_length=2)
    go_on.set()
    server.wait_for(queue_length=0)
    assert len(started) == 2 and server.metrics()[gone] >= before + QUEUE - 2
