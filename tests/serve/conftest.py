"""One server for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.serve.running import Gate, Running, running


@pytest.fixture(scope="package")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def gate(server, monkeypatch) -> Iterator[Gate]:
    gate = Gate(server.engine, monkeypatch)
    yield gate
    gate.open()
    server.wait_for(decoding=0, queue_length=0)
