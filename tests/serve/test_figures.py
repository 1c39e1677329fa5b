"""Figures that the server's own decisions and its operator rely on: seconds spent, left and still to wait."""

import time
from types import SimpleNamespace

import pytest

from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.limits import Refused
from lantern_jax.apps.serve.picture_request import PictureRequest
from lantern_jax.apps.serve.worker import Worker
from tests.serve.running import BATCH, LIMITS, QUEUE, running, until
from tests.tiny_checkpoint import pipeline_on


@pytest.mark.parametrize(("seconds", "wait"), [(20, "16"), (0, "1"), (1e6, "600")])
def test_a_client_that_finds_the_queue_full_is_told_how_long_to_wait(seconds, wait):
    """At the pace of the pictures so far; at least a second, and at most ten minutes."""
    counters = Counters(decoding_seconds=seconds, pictures=10)
    worker = Worker(pipeline_on(1), LIMITS, counters, BATCH)
    full, one = (SimpleNamespace(request=SimpleNamespace(num=num)) for num in (QUEUE, 1))
    assert worker.submit(full) == 0
    with pytest.raises(Refused) as refusal:
        worker.submit(one)
    assert refusal.value.headers == {"Retry-After": wait}


def test_explicit_and_default_methods_do_not_share_a_batch():
    """Even if the open choice is that method for a single picture: for several it may be another."""
    worker = Worker(pipeline_on(1), LIMITS, Counters(), BATCH)
    alone = worker.pipeline.settings({"method": "ar"})

    def kind(**options):
        request, plan = worker.check(PictureRequest("a lake", options=options))
        return worker._orders(SimpleNamespace(request=request, plan=plan, settings=alone))[0].kind

    assert kind() == kind(method="auto") != kind(method="ar")


def test_seconds_that_pictures_share_are_counted_once(server, gate, monkeypatch):
    """In a run of many pieces that takes in further pictures."""
    spent, finish = [], server.engine.finish

    def noted(run):
        spent.append(run.timing.decoding)
        return finish(run)

    monkeypatch.setattr(server.engine, "finish", noted)
    gate.let(1000)
    before, began = server.worker.counters.decoding_seconds, time.monotonic()
    # With another seed all pictures may by chance be done in the same round, which ends the run.
    assert server.ask(n=BATCH + 1, seed=5).status_code == 200
    assert len(spent) > 2 and spent == sorted(spent), "it was one run"
    counted = server.worker.counters.decoding_seconds - before
    assert counted == pytest.approx(spent[-1]) and 0 < counted < time.monotonic() - began


def test_a_server_whose_warm_up_fails_serves(server, monkeypatch, caplog):
    def fail(*given):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(Worker, "_run_all", fail)
    with running(server.library(), warm_up=True, batch=1) as cold:
        until(lambda: "warming up failed" in caplog.text)
        until(lambda: not cold.worker._cold)
        assert cold.client.get("/health").json() == {"status": "ok", "warm": False}
        assert cold.ask(method="ar").status_code == 200
