"""The events of a request, from the device's thread."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.apps.serve.limits import Refused
from lantern_jax.apps.serve.picture_request import PictureRequest
from lantern_jax.apps.serve.ticket import Done, Progress, Ticket

CODES = np.arange(4)


def done(index: int) -> Done:
    return Done(index, b"", CODES, CODES, "", 3, 0.1, 0.0)


def ticket(num: int) -> Ticket:
    plan = SimpleNamespace(call=SimpleNamespace(settings=None))
    return Ticket(PictureRequest("a lake", num, stream=True, partial_images=1, details=True), plan)


def test_slow_readers_get_fewer_events():
    """Every picture is told of, asked for or finished; progress only while few events are unread."""
    asked_for = Progress(0, 99, 100, 99, 9.9, b"asked for", partial=0)
    told = [*(Progress(0, known, 100, known, 0.1) for known in range(99)), asked_for, done(0), done(1)]

    async def listen():
        wanted = ticket(2)
        thread = threading.Thread(target=lambda: [wanted.send(event) for event in told])
        thread.start()
        thread.join()
        await asyncio.sleep(0.01)
        return [event async for event in wanted.events(5.0, 60)]

    assert asyncio.run(listen()) == [*told[:8], *told[-3:]]


def test_silence_is_reported():
    async def listen():
        wanted = ticket(1)
        listener = wanted.events(0.01, 60)
        first = await anext(listener)
        wanted.send(done(0))
        return first, [event async for event in listener if event is not None]

    first, rest = asyncio.run(listen())
    assert first is None and [event.index for event in rest] == [0]


def test_a_slow_reader_of_events_is_told_that_time_is_up():
    async def listen():
        wanted = ticket(1)
        wanted.send(Progress(0, 1, 4, 1, 0.1))
        listener = wanted.events(5.0, 0.05)
        assert (await anext(listener)).tokens == 1
        await asyncio.sleep(0.1)
        await anext(listener)

    with pytest.raises(Refused, match="took too long"):
        asyncio.run(listen())
