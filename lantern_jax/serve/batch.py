"""A batch of pictures on its way through the engine, and whose they are.

Axes: n slots of a run, T codes of a picture.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lantern_jax.engine.engine import Engine
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.pictures.images import encode_png, origin_text, tokens_digest
from lantern_jax.pipeline.drawing import why_not_finite
from lantern_jax.pipeline.plan import until_next
from lantern_jax.serve.counters import Counters
from lantern_jax.serve.limits import Refused
from lantern_jax.serve.previews import Brush
from lantern_jax.serve.ticket import Done, Progress, Ticket
from lantern_jax.settings.settings import settings_json
from lantern_jax.text.encoders import Conditioning

# Rows are told of, and requests begin, that often: somebody watches.
PIECE_SECONDS = 0.2


@dataclass(eq=False)
class Order:
    """One picture that somebody waits for.

    Attributes:
        ticket, index: of which request, and which of its pictures.
        kind: orders of equal ones can share a run.
        job: how they are decoded.
        row: what it is conditioned on, leaves [1, ...].
        free: positions of the token stream that are codes; the others the format forces.
        asked: when, by ``time.perf_counter``.
        began, waited: what the run had spent on decoding when it began, and the seconds before.
        partials, sketched: pictures on the way that were told, and when one was drawn last.
    """

    ticket: Ticket
    index: int
    kind: Any
    job: Job
    row: Conditioning
    free: Int[np.ndarray, " T"]
    asked: float
    began: float = 0.0
    waited: float = 0.0
    partials: int = 0
    sketched: float = 0.0


@dataclass(frozen=True)
class Tools:
    """What a flight works with; ``batch`` is the most slots of a run."""

    engine: Engine
    brush: Brush
    counters: Counters
    batch: int

    def slots(self, count: int) -> int:
        """How many slots a run for so many pictures has: a power of two, as its program has, or the batch; on every
        group of devices at least one."""
        return max(min(1 << (count - 1).bit_length(), self.batch), len(self.engine.devices))


class Flight:
    """A run, and the order in each of its slots.

    Attributes:
        slots: the orders; None where nobody waits for what is there.
        refills: whether slots can be filled again.
        fits: whether there can be more of them, or fewer.
    """

    def __init__(self, tools: Tools, orders: list[Order]):
        self._tools = tools
        count = tools.slots(len(orders))
        self.slots: list[Order | None] = [*orders, *[None] * (count - len(orders))]
        # Nobody waits for the repeated ones: their slots are free for whoever comes.
        there = [*orders, *[orders[-1]] * (count - len(orders))]
        self.kind, self.refills, self.fits = orders[0].kind, True, True
        self._run = tools.engine.start(
            orders[0].job, _rows(there), seed=_seeds(there), numbers=_numbers(there), most=count
        )
        tools.counters.seconds += self._run.timing.decoding
        now = time.perf_counter()
        for order in orders:
            order.waited = now - order.asked

    @property
    def orders(self) -> list[Order]:
        """Those that are not done."""
        return [order for order in self.slots if order is not None]

    def fit(self, waiting: int) -> None:
        """As many slots as a new run would have for those that are not done and the waiting pictures of this kind,
        where its program is compiled already: nobody waits for that."""
        live = [slot for slot, order in enumerate(self.slots) if order is not None]
        count = self._tools.slots(len(live) + waiting) if live else len(self.slots)
        engine, before = self._tools.engine, self._run.timing.decoding
        if count == len(self.slots) or not self.fits or not engine.has_program(self._run, count):
            return
        try:
            self._run = engine.regroup(self._run, np.resize(live, count))
        except (NotRefillable, jax.errors.JaxRuntimeError):
            # There may be too little memory for both: this one is as it was.
            self.fits = False
            return
        self._tools.counters.seconds += self._run.timing.decoding - before
        self.slots = [*(self.slots[slot] for slot in live), *[None] * (count - len(live))]

    def room(self, waiting: int) -> int:
        """How many of so many waiting pictures of this kind to take in: none where a larger run should serve them."""
        live = len(self.orders)
        fits = self._tools.slots(live + waiting) <= len(self.slots)
        return min(waiting, len(self.slots) - live) if self.refills and live and fits else 0

    def take(self, orders: list[Order]) -> None:
        """Begins orders in slots that are free.

        Raises:
            NotRefillable: as ``Engine.refill``; nothing has changed then.
        """
        empty = [slot for slot, order in enumerate(self.slots) if order is None][: len(orders)]
        before = self._run.timing.decoding
        self._run = self._tools.engine.refill(
            self._run, np.array(empty), _rows(orders), _numbers(orders), seeds=_seeds(orders)
        )
        self._tools.counters.seconds += self._run.timing.decoding - before
        now = time.perf_counter()
        for slot, order in zip(empty, orders, strict=True):
            self.slots[slot] = order
            order.began, order.waited = before, now - order.asked

    def advance(self, hurry: bool) -> None:
        """A piece further; with ``hurry`` no longer than until about the next picture is done."""
        live = np.array([order is not None for order in self.slots])
        most = until_next(self._run, live, given=0) if hurry else None
        before = self._run.timing.decoding
        self._run = self._tools.engine.advance_for(self._run, PIECE_SECONDS, most)
        self._tools.counters.seconds += self._run.timing.decoding - before

    def settle(self) -> None:
        """Tells how far every picture is, hands over those that are done and lets go of those nobody waits for."""
        decoded = self._tools.engine.finish(self._run)
        finished = self._run.finished
        watched = []
        for slot, order in enumerate(self.slots):
            if order is None:
                continue
            if order.ticket.dropped:
                self.slots[slot] = None
                self._tools.counters.dropped += 1
                continue
            codes, rounds = decoded.tokens[slot, order.free], int(decoded.rounds[slot])
            if not finished[slot]:
                watched.append((order, codes, rounds))
                continue
            self.slots[slot] = None
            if decoded.finite[slot]:
                self._hand_over(order, codes, decoded.round_of_token[slot, order.free], rounds)
            else:
                why = why_not_finite(self._tools.engine, "the target's logits", ("target",))
                order.ticket.tell(Refused(500, why))
        self._show(watched)

    def _hand_over(self, order: Order, codes, round_of_token, rounds: int) -> None:
        asking, counters = order.ticket.asking, self._tools.counters
        seconds = self._run.timing.decoding - order.began
        settings = settings_json(order.ticket.settings)
        text = origin_text(str(asking.prompt), asking.seed, order.index, settings, codes)
        png = encode_png(self._tools.brush.draw(codes), text)
        counters.pictures += 1
        counters.tokens += len(codes)
        counters.rounds += rounds
        counters.drawing_seconds = self._tools.brush.spent
        digest = tokens_digest(codes)
        order.ticket.tell(
            Done(order.index, png, codes, round_of_token, digest, rounds, seconds, order.waited)
        )

    def _show(self, watched: list[tuple[Order, Int[np.ndarray, " T"], int]]) -> None:
        """Progress of pictures on their way, to those who asked for it; they take turns in having them drawn."""
        detailed = [order for order, *_ in watched if order.ticket.asking.details]
        turn = min(detailed, key=lambda order: order.sketched, default=None)
        for order, codes, rounds in watched:
            asking, known = order.ticket.asking, int((codes >= 0).sum())
            if not asking.stream:
                continue
            parts = asking.partial_images + 1
            partial = order.partials if known * parts >= (order.partials + 1) * len(codes) else None
            if partial is None and not asking.details:
                continue
            png = None
            if partial is not None or (order is turn and self._tools.brush.rested):
                sketch = self._tools.brush.sketch(codes)
                # What OpenAI's clients get has no clear places.
                png = encode_png(sketch if partial is None else sketch[..., :3])
                order.sketched = time.perf_counter()
            seconds = self._run.timing.decoding - order.began
            order.ticket.tell(Progress(order.index, known, len(codes), rounds, seconds, png, partial))
            order.partials += partial is not None


def _rows(orders: list[Order]) -> Conditioning:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(order.row for order in orders))


def _seeds(orders: list[Order]) -> Int[np.ndarray, " n"]:
    return np.array([order.ticket.asking.seed for order in orders], np.uint32)


def _numbers(orders: list[Order]) -> Int[np.ndarray, " n"]:
    return np.array([order.index for order in orders])
