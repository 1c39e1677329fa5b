"""Figures that the server's own decisions and its operator rest on: seconds that are spent, left and to be waited."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.serve import batch
from lantern_jax.serve.counters import Counters
from lantern_jax.serve.limits import Refused
from lantern_jax.serve.worker import Worker
from tests.serve.running import BATCH, LIMITS, QUEUE
from tests.tiny_checkpoint import pipeline_on


@pytest.mark.parametrize(("seconds", "wait"), [(20, "16"), (0, "1"), (1e6, "600")])
def test_who_finds_the_queue_full_is_told_how_long_it_takes(seconds, wait):
    """At the pace of the pictures so far; not at once, and no longer than ten minutes."""
    counters = Counters()
    counters.seconds, counters.pictures = seconds, 10
    worker = Worker(pipeline_on(1), LIMITS, counters, BATCH)
    full, one = (SimpleNamespace(request=SimpleNamespace(num=num)) for num in (QUEUE, 1))
    assert worker.submit(full) == 0
    with pytest.raises(Refused) as refusal:
        worker.submit(one)
    assert refusal.value.headers == {"Retry-After": wait}


def test_seconds_that_pictures_share_are_counted_once(server, gate, monkeypatch):
    """In a run of many pieces that takes in further pictures."""
    spent, finish = [], server.engine.finish

    def noted(run):
        spent.append(run.timing.decoding)
        return finish(run)

    monkeypatch.setattr(server.engine, "finish", noted)
    gate.let(1000)
    before, began = server.worker.counters.seconds, time.monotonic()
    assert server.ask(n=QUEUE - 1).status_code == 200
    assert len(spent) > 2 and spent == sorted(spent), "it was one run"
    counted = server.worker.counters.seconds - before
    assert counted == pytest.approx(spent[-1]) and 0 < counted < time.monotonic() - began


def test_unfinished_pictures_are_drawn_rarely(monkeypatch):
    """One that took a second is followed by a rest of which it is the share."""
    now, painter = [0.0], batch.Painter(None, 2)

    def draw(codes):
        now[0] += 1
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.setattr(batch, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(painter, "draw", draw)
    assert painter.rested
    painter.sketch(np.array([3, 5, -1, -1]))
    for moment, rested in ((1.01, False), (0.99 / batch.SHARE, False), (1.01 / batch.SHARE, True)):
        now[0] = moment
        assert painter.rested == rested
