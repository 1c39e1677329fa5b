"""Making a set with workers that come and go: shards are handed out one by one to whoever is free.

What the workers are and where they run is a ``Fleet``'s matter; ``ray_workers`` has one of Ray's actors.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from lantern_jax.engine.generation import Progress
from lantern_jax.io.errors import LanternError
from lantern_jax.sets.handing_out import Handout
from lantern_jax.sets.mending import discard_damaged
from lantern_jax.sets.order import SetOrder
from lantern_jax.sets.plan import SetPlan, begin, remove_leftovers


@dataclass(frozen=True)
class Event:
    """What was heard of a worker.

    Attributes:
        worker: its number, from 1.
        kind: "opened": it can make shards of a plan. "progress": of its shard. "written": its shard is there.
            "refused": what it was asked to open is wrong, there at least. "lost": it failed or died, and is gone.
        value: the plan and the versions of its software, a ``Progress``, None, or a line that says why.
    """

    worker: int
    kind: Literal["opened", "progress", "written", "refused", "lost"]
    value: Any = None


class Fleet(Protocol):
    """Workers of some kind."""

    def room(self) -> int:
        """How many workers there may be now, at least 1."""

    def start(self, worker: int) -> None:
        """Begins a worker, which opens the order, as soon as there are resources for it."""

    def make(self, worker: int, shard: int) -> None:
        """Gives a worker that is opened, and has none, a shard."""

    def events(self) -> list[Event]:
        """What happened since the last call; waits a second for it at most."""

    def stop(self, worker: int) -> None:
        """Ends a worker at once, whatever it does."""

    def close(self) -> None:
        """Ends all of them."""


class Driver:
    """Makes one set with a fleet.

    Args:
        fleet: opens ``order`` and writes into ``directory``.
        order: what the set is to be.
        directory: of the set, which all workers share.
        note: called with a line about a worker that is left out, or a shard that is made again.
    """

    def __init__(self, fleet: Fleet, order: SetOrder, directory: Path, note: Callable[[str], None]):
        self.fleet, self.directory, self.note = fleet, directory, note
        self.plan: SetPlan | None = None
        self._versions = ""
        self._handout = Handout(())
        self._shards = -(-len(order.prompts) * order.num // order.shard_size)
        self._started = self._refused = 0
        self._refusal = ""
        self._alive: set[int] = set()
        self._opened: set[int] = set()
        self._known: dict[int, Progress] = {}

    def open(self) -> SetPlan:
        """Starts workers; once the first is there it begins the set, or goes on with it.

        Raises:
            ValueError: what the first worker, or ``plan.begin``, finds wrong; or no worker comes that far.
        """
        while self.plan is None:
            self._start(self._shards)
            for event in self.fleet.events():
                if event.kind == "refused" and self.plan is None:
                    raise LanternError(event.value)
                self._hear(event)
            self._check()
        return self.plan

    def make(self) -> Iterator[tuple[int | None, Progress]]:
        """Hands out all shards that are not there; it yields as ``making.make_shards`` does, of all workers together.

        Raises:
            ValueError: one line: shards that failed again and again, once all others are written, or everything fails.
        """
        pictures = sum(len(self.plan.numbers(shard)) for shard in self._handout.waiting)
        began, done, tokens = time.perf_counter(), 0, 0

        def now() -> Progress:
            known = self._known.values()
            return Progress(
                done * tokens + sum(one.tokens for one in known), max(1, pictures * tokens),
                done + sum(one.pictures for one in known), time.perf_counter() - began,
            )  # fmt: skip

        while self._handout.left:
            self._start(self._handout.left)
            self._hand_out()
            for event in self.fleet.events():
                shard = self._handout.held.get(event.worker)
                if event.kind == "progress" and shard is not None:
                    tokens = event.value.total // len(self.plan.numbers(shard))
                self._hear(event)
                if event.kind == "written" and shard is not None:
                    done += len(self.plan.numbers(shard))
                    yield shard, now()
            if tokens:
                yield None, now()
            self._check()
        if self._handout.complaint():
            raise LanternError(self._handout.complaint())
        # Nobody writes any more.
        self.fleet.close()
        remove_leftovers(self.directory)

    def _start(self, shards: int) -> None:
        """As many workers as there is room and work for."""
        while len(self._alive) < min(self.fleet.room() - self._refused, shards):
            self._started += 1
            self._alive.add(self._started)
            self.fleet.start(self._started)

    def _hand_out(self) -> None:
        for worker in sorted(self._opened - set(self._handout.held)):
            self._handout = self._handout.take(worker)
            if worker in self._handout.held:
                self.fleet.make(worker, self._handout.held[worker])

    def _hear(self, event: Event) -> None:
        if event.worker not in self._alive:
            return
        if event.kind == "opened":
            self._welcome(event.worker, *event.value)
        elif event.kind == "progress":
            self._known[event.worker] = event.value
        elif event.kind == "written":
            self._known.pop(event.worker, None)
            self._handout = self._handout.written(event.worker)
        elif event.kind == "refused":
            self._leave_out(event.worker, event.value)
        else:
            self._handout = self._handout.lost(event.worker, event.value)
            self.note(f"worker {event.worker} is lost: {event.value}")
            self._forget(event.worker)

    def _welcome(self, worker: int, plan: SetPlan, versions: str) -> None:
        """A worker that makes the same set as the first is one; the first one's set is begun."""
        if self.plan is None:
            begin(self.directory, plan)
            remove_leftovers(self.directory)
            discard_damaged(self.directory, plan, range(plan.shards), self.note)
            self.plan, self._versions = plan, versions
            waiting = tuple(plan.missing(self.directory))
            self._handout = dataclasses.replace(self._handout, waiting=waiting, beginnings=0)
        difference = plan.difference(self.plan)
        if difference is None and versions != self._versions:
            difference = f"{versions}, not {self._versions}"
        if difference is None:
            self._opened.add(worker)
        else:
            self._leave_out(worker, f"it would make another set ({difference})")

    def _leave_out(self, worker: int, why: str) -> None:
        """Ends a worker whose place is no good, and starts none in its stead."""
        self._refused, self._refusal = self._refused + 1, why
        self.note(f"worker {worker} is left out: {why}")
        self.fleet.stop(worker)
        self._forget(worker)

    def _forget(self, worker: int) -> None:
        self._alive.discard(worker)
        self._opened.discard(worker)
        self._known.pop(worker, None)

    def _check(self) -> None:
        """Raises ValueError where it makes no sense to go on."""
        if self._handout.hopeless:
            raise LanternError(self._handout.complaint())
        if not self._alive and self.fleet.room() <= self._refused:
            raise LanternError(f"no worker is left, the last was left out: {self._refusal}")
