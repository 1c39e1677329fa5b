"""A request on its way: what the device's thread tells, and the loop that answers hears.

Axes: T codes of a picture.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from lantern_jax.serve.limits import Refused
from lantern_jax.serve.requests import Asking
from lantern_jax.settings.settings import Settings


@dataclass(frozen=True)
class Progress:
    """How far a picture is.

    Attributes:
        index: of the request's pictures.
        tokens, total: codes known, and all.
        rounds: target passes so far.
        seconds: of decoding so far.
        png: the picture as it is, where it was drawn.
        partial: which of the pictures that were asked for on the way this is; None for one between them.
    """

    index: int
    tokens: int
    total: int
    rounds: int
    seconds: float
    png: bytes | None = None
    partial: int | None = None


@dataclass(frozen=True)
class Done:
    """A picture that is finished.

    Attributes:
        index: of the request's pictures, its number of the seed.
        png: the file, with ``pictures.origin_text`` in it.
        tokens, round_of_token: int32 [T], as in ``Generation``.
        digest: ``pictures.tokens_digest`` of the tokens.
        rounds: target passes after prefill.
        seconds: of decoding, without compiling and drawing; other pictures may have shared them.
        waited: seconds before it began.
    """

    index: int
    png: bytes
    tokens: Int[np.ndarray, " T"]
    round_of_token: Int[np.ndarray, " T"]
    digest: str
    rounds: int
    seconds: float
    waited: float


Event = Progress | Done | Refused


class Ticket:
    """Carries events from the device's thread to the loop it was made in.

    Attributes:
        asking: what is wanted.
        settings: how it is decoded.
        dropped: whether nobody waits for it any more; the device's thread then leaves out what is not done.
    """

    def __init__(self, asking: Asking, settings: Settings):
        self.asking, self.settings, self.dropped = asking, settings, False
        self._loop = asyncio.get_running_loop()
        # Events that were not heard yet. Of a picture's progress the newest takes the older one's place: whoever reads
        # slowly gets fewer events, not a longer line of them.
        self._events: dict[Hashable, Event] = {}
        self._told = asyncio.Event()

    def drop(self) -> None:
        """Nobody waits any more."""
        self.dropped = True

    def tell(self, event: Event) -> None:
        """From any thread: an event for whoever listens."""
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event) -> None:
        passing = isinstance(event, Progress) and event.partial is None
        key: Any = ("progress", event.index) if passing else object()
        older = self._events.get(key)
        if older is not None and event.png is None:
            event = dataclasses.replace(event, png=older.png)
        self._events[key] = event
        self._told.set()

    async def events(self, silence: float) -> AsyncIterator[Event | None]:
        """Events until all pictures are done; None after so many seconds without one.

        Raises:
            Refused: the request fails.
        """
        left = self.asking.num
        while left:
            if not self._events:
                self._told.clear()
                try:
                    await asyncio.wait_for(self._told.wait(), silence)
                except TimeoutError:
                    yield None
                    continue
            event = self._events.pop(next(iter(self._events)))
            if isinstance(event, Refused):
                raise event
            left -= isinstance(event, Done)
            yield event
