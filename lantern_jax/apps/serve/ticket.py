"""A request in progress: events from the device's thread to the event loop.

Axes: T codes of a picture.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lantern_jax.apps.serve.limits import Refused
from lantern_jax.apps.serve.picture_request import PictureRequest
from lantern_jax.pipeline.plan import Plan

# Events that may wait for their reader before progress is no longer told.
_MOST_UNREAD = 8


@dataclass(frozen=True)
class Queued:
    """A request that waits; ``ahead`` pictures of others wait before its first one."""

    ahead: int


@dataclass(frozen=True)
class Progress:
    """An unfinished picture; one without tokens has its turn, but its programs may have to be compiled.

    Attributes:
        index: which of the request's pictures it is.
        tokens, total: codes known, and all.
        rounds: target passes so far.
        seconds: of decoding so far.
        file: the picture so far, if it was drawn.
        partial: its place among the requested partial images; None if it is none of them.
    """

    index: int
    tokens: int
    total: int
    rounds: int
    seconds: float
    file: bytes | None = None
    partial: int | None = None


@dataclass(frozen=True)
class Done:
    """A finished picture.

    Attributes:
        index: which of the request's pictures it is, and its number of the seed.
        file: the encoded picture; a PNG has ``pictures.origin_text`` in it.
        tokens, round_of_token: int32 [T], as in ``Generation``.
        digest: ``tokens_digest`` of the tokens.
        rounds: target passes after prefill.
        seconds: of decoding, perhaps shared with other pictures, without compiling and drawing.
        waited: seconds before it began.
    """

    index: int
    file: bytes
    tokens: Int[np.ndarray, " T"]
    round_of_token: Int[np.ndarray, " T"]
    digest: str
    rounds: int
    seconds: float
    waited: float


Event = Queued | Progress | Done | Refused


class Ticket:
    """Carries events of a request from any thread to the loop it was made in.

    Attributes:
        request, plan: what to draw, and the call that draws it.
        settings: how it is decoded; the batch decides, once it has begun.
        waiting: its pictures that have places in the queue; the worker counts them.
        dropped: whether the client is gone; the device's thread then skips what is not done yet.
    """

    def __init__(self, request: PictureRequest, plan: Plan):
        self.request, self.plan, self.settings = request, plan, plan.call.settings
        self.waiting, self.dropped = 0, False
        self._loop, self._events = asyncio.get_running_loop(), asyncio.Queue()

    def send(self, event: Event) -> None:
        """Sends an event, from any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        # Slow readers get fewer events, not a longer queue.
        passing = isinstance(event, Progress) and event.partial is None
        if not passing or self._events.qsize() < _MOST_UNREAD:
            self._events.put_nowait(event)

    async def events(self, silence: float, seconds: float) -> AsyncIterator[Event | None]:
        """Yields events until all pictures are done, and None after ``silence`` seconds without one.

        Raises:
            Refused: the request fails, or takes more than ``seconds``.
        """
        left, end = self.request.num, time.monotonic() + seconds
        while left:
            rest = end - time.monotonic()
            if rest <= 0:
                message = "the pictures took too long: ask for fewer, or again when the server is less busy"
                raise Refused(504, message)
            try:
                event = await asyncio.wait_for(self._events.get(), min(silence, rest))
            except TimeoutError:
                event = None
            if isinstance(event, Refused):
                raise event
            left -= isinstance(event, Done)
            yield event
