"""A server of the tiny model on a local port, as its clients see it."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import httpx

from lantern_jax.apps.serve.access import Access
from lantern_jax.apps.serve.application import application
from lantern_jax.apps.serve.limits import Limits
from lantern_jax.apps.serve.server import Server
from lantern_jax.apps.serve.worker import Worker
from lantern_jax.engine.engine import Engine
from lantern_jax.pipeline.pipeline import Pipeline
from tests.tiny_checkpoint import pipeline_on

PATH = "/v1/images/generations"
GET = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BATCH, QUEUE = 4, 8
LIMITS = Limits(queue=QUEUE, body_seconds=0.5, seconds=60, body_bytes=16384, programs=64)


@dataclass
class Running:
    """A server that answers, and a client of it."""

    url: str
    pipeline: Pipeline
    worker: Worker
    connections: set
    client: httpx.Client = field(repr=False)

    @property
    def engine(self) -> Engine:
        return self.pipeline.engine

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rsplit(":", 1)[1])

    def library(self) -> Pipeline:
        """Returns another pipeline with the server's compiled programs."""
        pipeline = pipeline_on(1)
        pipeline.engine.programs = self.engine.programs
        return pipeline

    def ask(self, **fields) -> httpx.Response:
        return self.client.post(PATH, json={"prompt": "a lake", **fields})

    def told(self, **fields) -> list[dict]:
        """Returns the events of a stream; each has the type that its line names."""
        asked = {"prompt": "a lake", "stream": True, **fields}
        with self.client.stream("POST", PATH, json=asked) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            return list(events(response))

    def metrics(self) -> dict[str, float]:
        lines = [line for line in self.client.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def wait_for(self, seconds: float = 20, **gauges: float) -> None:
        names = {f"lantern_{name}": value for name, value in gauges.items()}
        until(lambda: names.items() <= self.metrics().items(), seconds)

    def later(self, task: Callable, **gauges: float) -> Callable:
        return lambda: (self.wait_for(**gauges), task())[1]


def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


@contextlib.contextmanager
def running(
    pipeline: Pipeline | None = None, warm_up: bool = False, batch: int = BATCH, **limits
) -> Iterator[Running]:
    pipeline, access = pipeline or pipeline_on(1), Access.of("127.0.0.1", None)
    limits = replace(LIMITS, **limits)
    app = application(pipeline, "tiny", access, limits=limits, batch=batch, warm_up=warm_up)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        server = Server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until(lambda: server.started)
            with httpx.Client(base_url=url, timeout=60) as client:
                yield Running(url, pipeline, app.state.worker, server.server_state.connections, client)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


class Gate:
    def __init__(self, engine: Engine, monkeypatch):
        self._rounds, self._open = threading.Semaphore(0), False
        plain = engine.advance

        def advance(run, rounds=None):
            if self._open:
                return plain(run, rounds)
            assert self._rounds.acquire(timeout=30), "the gate was not opened"
            return plain(run, 1)

        monkeypatch.setattr(engine, "advance", advance)

    def let(self, rounds: int) -> None:
        self._rounds.release(rounds)

    def open(self) -> None:
        self._open = True
        self._rounds.release(1000)


def events(response: httpx.Response) -> Iterator[dict]:
    """Yields the server-sent events of an answer; each has the type that its line names."""
    kind = None
    for line in response.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == kind
            yield event
        else:
            assert line == "" or line.startswith(":"), line


def said(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def in_threads(tasks: list[Callable]) -> list:
    threads = ThreadPoolExecutor(len(tasks))
    results = [threads.submit(task) for task in tasks]
    threads.shutdown(wait=False)
    return [result.result(60) for result in results]


def strange_lines(metrics: str) -> list[str]:
    sample = r'[a-z_]+(\{[a-z]+="[^"]*"\})? [0-9.e+-]+'
    comment = r"# TYPE [a-z_]+ (counter|gauge|histogram)"
    return [line for line in metrics.splitlines() if not re.fullmatch(f"{sample}|{comment}", line)]
