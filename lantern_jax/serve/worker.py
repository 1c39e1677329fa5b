"""The one thread that owns the devices: it takes pictures from a bounded line and batches them by refill."""

import collections
import dataclasses
import logging
import math
import threading
import time
from typing import Any

import jax
import numpy as np

from lantern_jax.engine.program_cache import return_memory
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.serve.batch import PIECE_SECONDS, Flight, Order, Tools
from lantern_jax.serve.counters import Counters
from lantern_jax.serve.limits import Limits, Refused
from lantern_jax.serve.previews import Brush
from lantern_jax.serve.requests import Asking
from lantern_jax.serve.ticket import Ticket
from lantern_jax.settings.settings import Settings

_log = logging.getLogger(__name__)
# Requests that come together are decoded together: how long the first of them waits for the others.
GATHERING_SECONDS = 0.02
# Whoever asked may ask again, and would wait for a program that nobody needs yet: how long compiling ahead waits.
QUIET_SECONDS = 10.0
_STOPPING = "the server is stopping: ask again later"


class Worker:
    """Decodes what tickets ask for.

    Pictures of the same settings share a run, whose slots take in waiting ones as they come free. The oldest waiting
    picture decides: where its settings are others, a run takes in no more and ends first, so that nobody starves.

    Args:
        pipeline: touched by this thread alone, but for checks.
        batch: pictures decoded at once.
        warm_up: a prompt for which programs of the default settings are compiled while nobody waits; None for none.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        limits: Limits,
        counters: Counters,
        batch: int,
        warm_up: str | None = None,
    ):
        self.pipeline, self._limits, self._counters = pipeline, limits, counters
        config = pipeline.checkpoint.target_config
        brush = Brush(pipeline.engine, config.grid)
        self._tools = Tools(pipeline.engine, brush, counters, batch)
        pipeline.engine.programs.most = limits.programs
        self._dropped_programs = pipeline.engine.programs.dropped
        self._example = warm_up
        self._cold = self._sizes()
        # Under the lock: tickets that came, pictures that wait in all, whether to stop.
        self._changed = threading.Condition()
        self._came: list[Ticket] = []
        self._count, self._stopping = 0, False
        # The thread's own: pictures that wait, oldest first, and when it last had something to do.
        self._line: list[Order] = []
        self._busy = 0.0
        self._flight: Flight | None = None
        self._thread = threading.Thread(target=self._work, name="lantern-serve", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def refuse(self) -> None:
        """Refuses whoever waits and whoever comes, and ends after the piece of work that is on its way."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def stop(self, seconds: float = 30.0) -> None:
        """As ``refuse``; waits for the end, at most so long."""
        self.refuse()
        self._thread.join(seconds)

    @property
    def waiting(self) -> int:
        """Pictures that wait."""
        return self._count

    @property
    def decoding(self) -> int:
        """Pictures that are being decoded."""
        flight = self._flight
        return 0 if flight is None else len(flight.orders)

    @property
    def is_warm(self) -> bool:
        """Whether requests of the default settings find their programs compiled."""
        return not self._cold

    def check(self, asking: Asking) -> Settings:
        """The settings of a request; computes nothing, and may be called from any thread.

        Raises:
            Refused: what does not fit the model.
        """
        try:
            settings = self.pipeline.check(asking.prompt, num=asking.num, seed=asking.seed, **asking.knobs)
        except (LanternError, TypeError, OverflowError) as error:
            message = str(error)
            raise Refused(400, message, _blamed(message, asking)) from None
        nodes = settings.tree.num_nodes - 1
        if nodes > self._limits.nodes:
            raise Refused(
                400,
                f"the draft tree or window has {nodes} nodes: this server takes {self._limits.nodes}",
                "tree",
            )
        return settings

    def submit(self, ticket: Ticket) -> int:
        """Lets a ticket's pictures wait; returns how many others wait already.

        Raises:
            Refused: there is no room for them, or the server stops.
        """
        with self._changed:
            if self._stopping:
                raise Refused(503, _STOPPING)
            ahead = self._count
            if ahead + ticket.asking.num > self._limits.queue:
                counters = self._counters
                wait = math.ceil(ahead * counters.seconds / max(counters.pictures, 1))
                raise Refused(
                    429,
                    f"{ahead} pictures wait already, and {self._limits.queue} may: ask again later",
                    code="queue_full",
                    headers={"Retry-After": str(min(max(wait, 1), 600))},
                )
            self._count += ticket.asking.num
            self._came.append(ticket)
            self._changed.notify()
        return ahead

    def _work(self) -> None:
        with self.pipeline.text_encoder_kept():
            while self._wait():
                try:
                    if self._admit():
                        self._fly()
                        self._busy = time.monotonic()
                    elif self._cold:
                        with self._tools.engine.programs.staying():
                            self._warm()
                        return_memory()
                    self._tidy()
                except Exception:  # The thread must go on, whatever one request did.
                    _log.exception("lantern serve: unexpected, going on")
        for ticket in self._came:
            ticket.tell(Refused(503, _STOPPING))
        self._fail(self._line, Refused(503, _STOPPING))

    def _wait(self) -> bool:
        """Until there is something to do, if only compiling ahead; False where that is to stop."""
        with self._changed:
            idle = not self._came and not self._line
            quiet = max(self._busy + QUIET_SECONDS - time.monotonic(), 0) if self._cold else None
            self._changed.wait_for(lambda: self._came or self._line or self._stopping, quiet)
            if self._stopping:
                return False
        if idle:
            time.sleep(GATHERING_SECONDS)
        return True

    def _admit(self) -> bool:
        """Takes in the tickets that came; whether any picture waits."""
        with self._changed:
            came, self._came = self._came, []
        for ticket in came:
            try:
                self._line += self._orders(ticket)
            except Exception as error:
                ticket.tell(_failure(error))
                self._leave(ticket.asking.num)
        gone = [order for order in self._line if order.ticket.dropped]
        self._counters.dropped += len(gone)
        self._remove(gone)
        return bool(self._line)

    def _orders(self, ticket: Ticket) -> list[Order]:
        if ticket.dropped:
            self._counters.dropped += ticket.asking.num
            self._leave(ticket.asking.num)
            return []
        row, free, job = self._prepared(ticket.asking.prompt, ticket.asking.num, ticket.asking.knobs)
        shapes = [leaf.shape for leaf in jax.tree.leaves(row)]
        kind = (dataclasses.replace(ticket.settings, batch=1), shapes)
        now = time.perf_counter()
        return [Order(ticket, index, kind, job, row, free, now) for index in range(ticket.asking.num)]

    def _prepared(self, prompt: str | int, num: int = 1, knobs: Any = None):
        """What a prompt's pictures are conditioned on, leaves [1, ...], where their codes are in the stream, and how
        they are decoded."""
        call, job = self.pipeline.prepare(self.pipeline.encode([prompt]), num=num, **(knobs or {}))
        first = np.zeros(1, np.int64)
        return jax.tree.map(lambda leaf: leaf[first], call.conditioning), call.free, job

    def _fly(self) -> None:
        """One run, from the oldest picture that waits until its slots are empty."""
        kind, flight = self._line[0].kind, None
        orders = [order for order in self._line if order.kind == kind][: self._tools.batch]
        self._remove(orders)
        try:
            self._flight = flight = Flight(self._tools, orders)
            flight.settle()
            while flight.orders and not self._stopping:
                self._admit()
                self._fill(flight)
                flight.advance(hurry=bool(self._line))
                flight.settle()
        except Exception as error:
            self._fail(orders if flight is None else flight.orders, _failure(error))
        else:
            self._fail(flight.orders, Refused(503, _STOPPING))
        finally:
            self._flight = None

    def _fill(self, flight: Flight) -> None:
        """Free slots for waiting pictures of the same settings, up to the first of others."""
        same = 0
        while same < len(self._line) and self._line[same].kind == flight.kind:
            same += 1
        flight.fit(same)
        orders = self._line[: flight.room(same)]
        if not orders:
            return
        try:
            flight.take(orders)
        except NotRefillable:
            flight.refills = False
        else:
            self._remove(orders)

    def _remove(self, orders: list[Order]) -> None:
        """Orders that wait no longer."""
        if orders:
            gone = set(map(id, orders))
            self._line = [order for order in self._line if id(order) not in gone]
            self._leave(len(orders))

    def _leave(self, pictures: int) -> None:
        with self._changed:
            self._count -= pictures

    def _fail(self, orders: list[Order], refusal: Refused) -> None:
        for ticket in {id(order.ticket): order.ticket for order in orders}.values():
            ticket.tell(refusal)

    def _sizes(self) -> collections.deque[int]:
        """The numbers of slots that a run can have."""
        sizes = {self._tools.slots(count) for count in range(1, self._tools.batch + 1)}
        return collections.deque(sorted(sizes) if self._example is not None else ())

    def _warm(self) -> None:
        """Compiles and tries what a run of the next size takes, with the default settings."""
        size, engine = self._cold[0], self._tools.engine
        try:
            row, free, job = self._prepared(self._example)

            def rows(count: int):
                return jax.tree.map(lambda leaf: np.repeat(leaf, count, axis=0), row)

            numbers = np.arange(size)
            run = engine.start(job, rows(size), seed=0, numbers=numbers, most=size)
            for _ in range(2):  # The second knows the pace.
                run = engine.advance_for(run, PIECE_SECONDS)
            if size == self._sizes()[0]:
                self._tools.brush.draw(np.zeros(len(free), np.int32))
            count = 1
            while count < size:
                run = engine.refill(run, numbers[:count], rows(count), numbers[:count])
                count *= 2
            for fewer in self._sizes():
                if fewer < size:
                    engine.regroup(engine.regroup(run, numbers[:fewer]), np.resize(numbers[:fewer], size))
        except NotRefillable:
            pass
        except Exception as error:
            _log.error("lantern serve: warming up failed: %s", errors.printable(error))
            self._cold.clear()
            return
        self._cold.popleft()

    def _tidy(self) -> None:
        """Requests may ask for any settings: what programs left that were dropped does not pile up."""
        dropped = self._tools.engine.programs.dropped
        if dropped > self._dropped_programs:
            self._counters.programs_dropped += dropped - self._dropped_programs
            self._dropped_programs = dropped
            return_memory()


def _blamed(message: str, asking: Asking) -> str | None:
    """The field that an error's line is about: it begins with its name, maybe after a word such as "the"."""
    words = (word.rstrip(":") for word in message.split(maxsplit=2)[:2])
    return next((word for word in words if word in asking.knobs or word in ("prompt", "seed", "n")), None)


def _failure(error: Exception) -> Refused:
    """What is told of a request that failed on the device."""
    if isinstance(error, NotRefillable):
        return Refused(400, str(error))
    if "RESOURCE_EXHAUSTED" in str(error):
        return Refused(503, "the device has too little memory for this: ask for fewer pictures at once")
    _log.error("lantern serve: a request failed", exc_info=error)
    # Ours say in a line what is wrong with the model.
    why = str(error) if isinstance(error, LanternError) else "decoding failed: the server's log says why"
    return Refused(500, why)
