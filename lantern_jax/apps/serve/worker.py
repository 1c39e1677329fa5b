"""The thread that owns the devices: it takes pictures from a bounded queue and decodes them in batches."""

import collections
import contextlib
import ctypes
import dataclasses
import itertools
import logging
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from lantern_jax.apps.serve.batch import PIECE_SECONDS, Batch, Order, Tools, failure
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.limits import Limits, Refused
from lantern_jax.apps.serve.picture_request import FIELDS, METHOD, PictureRequest
from lantern_jax.apps.serve.ticket import Queued, Ticket
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.models.sizes import shape_of
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.pipeline.plan import Plan
from lantern_jax.settings.settings import Settings, steers
from lantern_jax.text.encoders import Conditioning

_log = logging.getLogger(__name__)
# Requests that come together are decoded together: how long the first one waits for others.
GATHERING_SECONDS = 0.02
# How long compiling ahead waits after a request: its client may send another, which would wait for the compiler.
QUIET_SECONDS = 10.0
# Fields of a method that decide how much memory a round takes.
_SIZES = ("nodes", "depth", "frontier", "children", "window", "branches", "levels", "refine", "samples")
_STOPPING = "the server is stopping: ask again later"
_FAILED = "the server has failed: start it again, and please report the lines of its log"


class Worker:
    """Decodes the pictures of tickets.

    Pictures of the same settings share a batch, whose slots take in waiting ones as they become free. The oldest
    waiting picture decides: if its settings differ, the batch takes in no more and ends first, so that none starves.
    Where requests leave open how to guess, their settings are those of a picture alone, and every batch guesses in the
    way that should be fastest for its size.

    Args:
        pipeline: used by this thread alone, except for checks.
        batch: the most pictures decoded together.
        warm_up: a prompt with which programs of the default settings are compiled while the queue is empty, or None.

    Attributes:
        waiting: how many pictures wait.
    """

    def __init__(
        self, pipeline: Pipeline, limits: Limits, counters: Counters, batch: int, warm_up: str | None = None
    ):
        self.pipeline, self.limits, self.counters = pipeline, limits, counters
        _, columns = shape_of(pipeline.checkpoint.target_config)
        encoder = ThreadPoolExecutor(1, thread_name_prefix="lantern-encoder")
        self._tools = Tools(pipeline.engine, counters, encoder, batch, columns)
        pipeline.engine.programs.most = limits.programs
        self._example = warm_up
        # The numbers of slots that a run can have, and those whose programs are not compiled yet.
        sizes = {self._tools.slots(count) for count in range(1, batch + 1)} if warm_up is not None else ()
        self._sizes, self._cold, self._warm_failed = sorted(sizes), collections.deque(sorted(sizes)), False
        # Under the lock: new tickets, pictures that wait in all, why to stop.
        self._changed = threading.Condition()
        self._came: list[Ticket] = []
        self.waiting, self._stopping = 0, ""
        # The thread's own: waiting pictures, oldest first, and when it last decoded.
        self._line: list[Order] = []
        self._busy = 0.0
        self._batch: Batch | None = None
        self._thread = threading.Thread(target=self._work, name="lantern-serve", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def refuse(self, why: str = _STOPPING) -> None:
        """Refuses waiting and new requests, and ends after the current piece of work."""
        with self._changed:
            self._stopping = self._stopping or why
            self._changed.notify()

    def stop(self) -> None:
        """Does what ``refuse`` does, and waits for the end, half a minute at most."""
        self.refuse()
        self._thread.join(30.0)

    @property
    def decoding(self) -> int:
        """Pictures that are being decoded."""
        batch = self._batch
        return 0 if batch is None else len(batch.orders)

    @property
    def has_failed(self) -> bool:
        """Whether the thread has ended by an error, after which every request is refused."""
        return self._stopping == _FAILED

    @property
    def is_warm(self) -> bool:
        """Whether the programs of the default settings are compiled."""
        return not self._cold and not self._warm_failed

    def check(self, request: PictureRequest) -> tuple[PictureRequest, Plan]:
        """Returns a request, with notes on what is ignored of its prompts, and its plan, from any thread.

        Raises Refused where it does not fit the model."""
        try:
            plan = self.pipeline.plan(
                request.prompt, negative_prompt=request.negative_prompt or None, num=request.num, seed=request.seed,
                start=request.start, keep_rows=request.keep_rows, batch=1, **request.options,
            )  # fmt: skip
            self._check_size(plan.call.settings)
        except LanternError as error:
            param = _blamed(str(error), request.options)
            raise Refused(422 if param in METHOD else 400, str(error), param) from None
        return dataclasses.replace(request, notes=(*request.notes, *plan.call.ignored)), plan

    def _check_size(self, settings: Settings) -> None:
        """Raises LanternError for a round that takes more memory than a server gives to one request."""
        parts = vars(settings.method).values()
        sizes = [(name, getattr(part, name, None)) for part in parts for name in _SIZES]
        most = self.limits.nodes
        for name, size in (*sizes, ("nodes of its tree", settings.tree.num_nodes - 1)):
            if isinstance(size, int) and size > most:
                raise LanternError(f"{name} {size} is more than this server takes: give at most {most}")

    def submit(self, ticket: Ticket) -> int:
        """Queues a ticket's pictures; returns how many others are ahead. Raises Refused without room for them."""
        with self._changed:
            if self._stopping:
                raise Refused(503, self._stopping)
            ahead, pictures = self.waiting, ticket.request.num
            if ahead + pictures > self.limits.queue:
                wait = math.ceil(ahead * self.counters.decoding_seconds / max(self.counters.pictures, 1))
                message = f"{ahead} pictures wait already, and {self.limits.queue} may: ask again later"
                headers = {"Retry-After": str(min(max(wait, 1), 600))}
                raise Refused(429, message, code="queue_full", headers=headers)
            ticket.waiting = pictures
            self.waiting += pictures
            self._came.append(ticket)
            self._changed.notify()
        return ahead

    def drop(self, ticket: Ticket) -> None:
        """Gives up what is not done of a ticket, whose client is gone; its places in the queue are free immediately."""
        with self._changed:
            ticket.dropped = True
            self.counters.pictures_dropped += ticket.waiting
            self._leave(ticket, ticket.waiting)
            if ticket in self._came:
                self._came.remove(ticket)

    def _work(self) -> None:
        try:
            with self.pipeline.text_encoder_kept(), self._tools.encoder:
                while self._wait():
                    if self._admit():
                        self._decode()
                        self._busy = time.monotonic()
                    elif self._cold:
                        with self._tools.engine.programs.staying():
                            self._warm()
                        return_memory()
                    dropped = self._tools.engine.programs.dropped
                    if dropped > self.counters.programs_dropped:
                        self.counters.programs_dropped = dropped
                        return_memory()
        except BaseException:  # What a request can cause is caught before.
            self.refuse(_FAILED)
            _log.exception("lantern serve: %s", _FAILED)
        with self._changed:
            tickets = {*self._came, *(order.ticket for order in self._line)}
        for ticket in tickets:
            ticket.send(Refused(503, self._stopping))

    def _wait(self) -> bool:
        """Waits until there is something to do, or time to compile ahead; returns False if it is to stop."""
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
        """Queues the pictures of new tickets; tells whether any picture waits."""
        with self._changed:
            came, self._came = self._came, []
        for ticket in came:
            try:
                self._line += self._orders(ticket)
            except Exception as error:
                ticket.send(failure(error))
                self._leave(ticket, ticket.waiting)
        self._remove([order for order in self._line if order.ticket.dropped])
        return bool(self._line)

    def _orders(self, ticket: Ticket) -> list[Order]:
        request, plan, now = ticket.request, ticket.plan, time.perf_counter()
        row = _first_row(plan)
        # If a request leaves open how to guess, its batch decides; others get what they ask for.
        kind = (ticket.settings, steers(request.options), [leaf.shape for leaf in jax.tree.leaves(row)])
        return [Order(ticket, index, kind, row, now) for index in range(request.num)]

    def _settings(self, size: int, options: Mapping[str, Any], alone: Settings) -> Settings:
        """Returns how a batch of this size is decoded: as a picture alone, but for guesses, which change no token."""
        if size == self._tools.slots(1):
            return dataclasses.replace(alone, batch=size)
        together = {**options, "batch": size}
        settings = self.pipeline.settings({**together, **self.pipeline.tuning(size, **together).options})
        chosen = alone.keeps_tokens and settings.keeps_tokens
        return settings if chosen else dataclasses.replace(alone, batch=size)

    def _decode(self) -> None:
        """Decodes one batch, from the oldest waiting picture until all slots are free."""
        first, batch = self._line[0], None
        orders = [order for order in self._line if order.kind == first.kind][: self._tools.batch]
        size, (alone, *_) = self._tools.slots(len(orders)), first.kind
        try:
            try:
                settings = self._settings(size, first.ticket.request.options, alone)
            finally:  # A picture that fails must not stay first in the line.
                self._remove(orders)
            self._batch = batch = Batch(self._tools, orders, settings, self.pipeline.job(settings))
            batch.settle()
            while batch.orders and not self._stopping:
                self._admit()
                self._fill(batch)
                batch.advance(hurry=bool(self._line))
                batch.settle()
            refusal = Refused(503, _STOPPING)
        except Exception as error:
            refusal = failure(error)
        finally:
            self._batch = None
        for ticket in {order.ticket for order in (orders if batch is None else batch.orders)}:
            ticket.send(refusal)

    def _fill(self, batch: Batch) -> None:
        """Fills free slots with waiting pictures of the same settings, up to the first one with others."""
        same = len(list(itertools.takewhile(lambda order: order.kind == batch.kind, self._line)))
        batch.fit(same)
        orders = self._line[: batch.room(same)]
        if not orders:
            return
        try:
            batch.take(orders)
        except NotRefillable:
            batch.refills = False
        else:
            self._remove(orders)

    def _remove(self, orders: list[Order]) -> None:
        """Takes orders from the queue."""
        if orders:
            gone = set(map(id, orders))
            self._line = [order for order in self._line if id(order) not in gone]
            for order in orders:
                self._leave(order.ticket, 1)
            # Clients who watch learn how many pictures wait before theirs.
            places = {order.ticket: place for place, order in reversed(list(enumerate(self._line)))}
            for ticket, place in places.items():
                if ticket.request.details:
                    ticket.send(Queued(place))

    def _leave(self, ticket: Ticket, pictures: int) -> None:
        """Gives places of a ticket in the queue back, unless it was dropped, which gave them all back."""
        with self._changed:
            pictures = min(pictures, ticket.waiting)
            ticket.waiting -= pictures
            self.waiting -= pictures

    def _warm(self) -> None:
        """Compiles and runs the programs of the next size, with the default settings."""
        try:
            self._run_all(self._cold[0])
        except NotRefillable:
            pass
        except Exception as error:
            _log.error("lantern serve: warming up failed: %s", errors.printable(error))
            self._cold.clear()
            self._warm_failed = True
            return
        self._cold.popleft()
        if not self._cold:
            _log.info("ready: the programs of the default settings are compiled")

    def _run_all(self, size: int) -> None:
        """Runs every program of a size, unless so few pictures are decoded one after the other."""
        engine, numbers = self._tools.engine, np.arange(size)
        plan = self.pipeline.plan(self._example, batch=1)
        ways = {each: self._settings(each, {}, plan.call.settings) for each in self._sizes if each <= size}
        if self._tools.slots(ways[size].batch) < size:
            return
        row = _first_row(plan)

        def rows(count: int):
            return jax.tree.map(lambda leaf: np.repeat(leaf, count, axis=0), row)

        job = self.pipeline.job(ways[size])
        run = engine.start(job, rows(size), seed=0, numbers=numbers, most=size)
        for _ in range(2):  # The second one knows the pace.
            run = engine.advance_for(run, PIECE_SECONDS)
        if size == self._sizes[0]:
            self._tools.draw(np.zeros(len(plan.free), np.int32))
        count = 1
        while count < size:
            run = engine.refill(run, numbers[:count], rows(count), numbers[:count])
            count *= 2
        for fewer, way in ways.items():
            if fewer < size and dataclasses.replace(way, batch=size) == ways[size]:
                engine.regroup(engine.regroup(run, numbers[:fewer]), np.resize(numbers[:fewer], size))


def _first_row(plan: Plan) -> Conditioning:
    """Returns what the pictures of a plan's one prompt are conditioned on, leaves [1, ...]."""
    return jax.tree.map(lambda leaf: leaf[:1], plan.conditioning)


def _blamed(message: str, options: Mapping[str, Any]) -> str | None:
    """Returns the field that an error is about: its line begins with the name, perhaps after a word like "the"."""
    part = next((name for name in METHOD if name in options), None)
    # A method has parts that the request does not name.
    known = {"codes": "start"} | {name: name for name in FIELDS} | dict.fromkeys({*METHOD} - {*options}, part)
    words = (word.rstrip(":") for word in message.split(maxsplit=2)[:2])
    return next((known[word] for word in words if word in known), part)


def return_memory() -> None:
    """Gives freed memory back to the system where glibc keeps it: compiling leaves a lot."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
