"""Pictures that are decoded together, each in a slot of a run, and drawn one by one.

Unfinished pictures, of the codes known so far, are drawn rarely enough to cost little.

Axes: n slots, T codes of a picture, H W height and width, h w rows and columns of codes.
"""

import functools
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int, UInt8

from lantern_jax.apps.display.picture_files import origin_text, tokens_digest
from lantern_jax.apps.serve.counters import Counters
from lantern_jax.apps.serve.limits import BUG, Refused
from lantern_jax.apps.serve.ticket import Done, Event, Progress, Ticket
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.io.errors import LanternError
from lantern_jax.pictures.images import encode_png
from lantern_jax.pipeline.drawing import draw_codes, why_not_finite
from lantern_jax.pipeline.plan import until_next
from lantern_jax.settings.settings import Settings
from lantern_jax.text.encoders import Conditioning

_log = logging.getLogger(__name__)
# Between pieces of this length, progress is sent and waiting pictures begin: somebody is watching.
PIECE_SECONDS = 0.2
# The largest share of the time that drawing unfinished pictures takes.
SHARE = 0.15
# Shown for unknown codes.
GREY = 128


@dataclass(eq=False)
class Order:
    """One picture of a request.

    Attributes:
        ticket, index: the request, and which of its pictures.
        kind: orders of equal kinds can share a run.
        row: what it is conditioned on, leaves [1, ...].
        asked: when it was asked for, by ``time.perf_counter``.
        began, waited: seconds of decoding that the run had spent when this picture began, and seconds it waited before.
        partials, sketched: partial images sent, and when it was last drawn unfinished.
    """

    ticket: Ticket
    index: int
    kind: Any
    row: Conditioning
    asked: float
    began: float = 0.0
    waited: float = 0.0
    partials: int = 0
    sketched: float = 0.0

    @property
    def free(self) -> Int[np.ndarray, " T"]:
        """The positions of the token stream that are codes; the format forces the others."""
        return self.ticket.plan.free


def guessed(codes: Int[np.ndarray, " T"], columns: int) -> Int[np.ndarray, " T"]:
    """Returns the codes, each unknown one (-1) replaced by the nearest known one above it, so that edges look right."""
    rows = np.array(codes, np.int32).reshape(-1, columns)
    first = rows[0]
    first[first < 0] = first[first >= 0][-1] if (first >= 0).any() else 0
    for above, row in itertools.pairwise(rows):
        row[row < 0] = above[row < 0]
    return rows.ravel()


def _covered(
    picture: UInt8[np.ndarray, "H W 3"], known: Bool[np.ndarray, " T"], columns: int
) -> UInt8[np.ndarray, "H W 4"]:
    cells = known.reshape(-1, columns)
    height, width = (size // count for size, count in zip(picture.shape, cells.shape, strict=False))
    shown = np.repeat(np.repeat(cells, height, axis=0), width, axis=1)[:, :, None]
    return np.concatenate([np.where(shown, picture, np.uint8(GREY)), np.uint8(255) * shown], axis=2)


@dataclass
class Tools:
    """What batches work with. A picture's bytes do not depend on what else is drawn.

    Attributes:
        engine, counters: used by the device's thread alone.
        encoder: one thread, which encodes PNGs while the device decodes on, and sends events in their order.
        batch: the most slots of a run.
        columns: codes in a row of a picture.
        rested: when another unfinished picture may be drawn without exceeding ``SHARE``.
    """

    engine: Engine
    counters: Counters
    encoder: Executor
    batch: int
    columns: int
    rested: float = 0.0

    def slots(self, count: int) -> int:
        """Returns the slots of a run for ``count`` pictures: the next power of two up to the batch, and at least one
        on every group of devices."""
        return max(min(1 << (count - 1).bit_length(), self.batch), len(self.engine.devices))

    def draw(self, codes: Int[np.ndarray, " T"]) -> UInt8[np.ndarray, "H W 3"]:
        """Draws a finished picture. Raises LanternError where it is not all numbers."""
        # A program for fewer groups of devices would need the parameters moved.
        groups = len(self.engine.devices)
        pictures, timing = draw_codes(self.engine, np.tile(codes, (groups, 1)), groups)
        self.counters.drawing_seconds += timing.drawing
        return pictures[0]

    def sketch(self, codes: Int[np.ndarray, " T"]) -> UInt8[np.ndarray, "H W 4"]:
        """Draws the known codes; the picture is grey and transparent where codes are -1."""
        began = time.perf_counter()
        picture = _covered(self.draw(guessed(codes, self.columns)), codes >= 0, self.columns)
        now = time.perf_counter()
        self.rested = now + (now - began) * (1 / SHARE - 1)
        return picture

    def send(self, ticket: Ticket, make: Callable[[], Event]) -> None:
        """Sends the event that ``make`` returns in the encoder's thread, unless the client is gone by then."""

        def work() -> None:
            try:
                if not ticket.dropped:
                    ticket.send(make())
            except Exception as error:
                ticket.send(failure(error))

        self.encoder.submit(work)


class Batch:
    """A run, and the order in each of its slots.

    Args:
        settings, job: how all of it is decoded.

    Attributes:
        slots: the orders; None where a slot is free.
        refills: whether slots can be filled again.
        fits: whether their number can change.
    """

    def __init__(self, tools: Tools, orders: list[Order], settings: Settings, job: Job):
        self._tools, self._settings = tools, settings
        count = tools.slots(len(orders))
        self.slots: list[Order | None] = [*orders, *[None] * (count - len(orders))]
        # Slots that repeat a picture are free.
        there = [*orders, *[orders[-1]] * (count - len(orders))]
        self.kind, self.refills, self.fits = orders[0].kind, True, True
        self._spent = 0.0
        self._announce(orders)
        self._go_on_with(
            tools.engine.start(job, _rows(there), seed=_seeds(there), numbers=_numbers(there), most=count)
        )
        for order in orders:
            order.waited = time.perf_counter() - order.asked

    def _go_on_with(self, run: Run) -> None:
        """Takes a run in place of the one before, and counts the seconds of decoding between the two."""
        self._tools.counters.decoding_seconds += run.timing.decoding - self._spent
        self._run, self._spent = run, run.timing.decoding

    @property
    def orders(self) -> list[Order]:
        """Unfinished orders."""
        return [order for order in self.slots if order is not None]

    def fit(self, waiting: int) -> None:
        """Resizes the run to the unfinished and ``waiting`` pictures, if it has a compiled program of that size."""
        live = [slot for slot, order in enumerate(self.slots) if order is not None]
        count = self._tools.slots(len(live) + waiting) if live else len(self.slots)
        engine = self._tools.engine
        if count == len(self.slots) or not self.fits or not engine.has_program(self._run, count):
            return
        try:
            self._go_on_with(engine.regroup(self._run, np.resize(live, count)))
            self.slots = [*self.orders, *[None] * (count - len(live))]
        except (NotRefillable, jax.errors.JaxRuntimeError):
            # There may be too little memory for both runs: this one is unchanged.
            self.fits = False

    def room(self, waiting: int) -> int:
        """Returns how many of ``waiting`` pictures to take in: none if a larger run should serve them."""
        live = len(self.orders)
        fits = self._tools.slots(live + waiting) <= len(self.slots)
        return min(waiting, len(self.slots) - live) if self.refills and live and fits else 0

    def take(self, orders: list[Order]) -> None:
        """Begins orders in free slots. Raises NotRefillable as ``Engine.refill``; nothing has changed then."""
        empty = [slot for slot, order in enumerate(self.slots) if order is None][: len(orders)]
        before, refill = self._spent, self._tools.engine.refill
        self._announce(orders)
        self._go_on_with(
            refill(self._run, np.array(empty), _rows(orders), _numbers(orders), seeds=_seeds(orders))
        )
        for slot, order in zip(empty, orders, strict=True):
            self.slots[slot] = order
            order.began, order.waited = before, time.perf_counter() - order.asked

    def _announce(self, orders: list[Order]) -> None:
        """Tells clients who watch that it is their turn: programs may have to be compiled first."""
        for order in orders:
            order.ticket.settings = self._settings
            if order.ticket.request.stream and order.ticket.request.details:
                order.ticket.send(Progress(order.index, 0, len(order.free), 0, 0.0))

    def advance(self, hurry: bool) -> None:
        """Decodes a piece; with ``hurry`` no longer than until about the next picture is done."""
        live = np.array([order is not None for order in self.slots])
        most = until_next(self._run, live, given=0) if hurry else None
        self._go_on_with(self._tools.engine.advance_for(self._run, PIECE_SECONDS, most))

    def settle(self) -> None:
        """Sends finished pictures and progress, and frees the slots of finished and dropped pictures."""
        decoded = self._tools.engine.finish(self._run)
        finished = self._run.finished
        watched = []
        for slot, order in enumerate(self.slots):
            if order is None:
                continue
            codes, rounds = decoded.tokens[slot, order.free], int(decoded.rounds[slot])
            if not finished[slot] and not order.ticket.dropped:
                watched.append((order, codes, rounds))
                continue
            self.slots[slot] = None
            if order.ticket.dropped:
                self._tools.counters.pictures_dropped += 1
            elif decoded.finite[slot]:
                self._hand_over(order, codes, decoded.round_of_token[slot, order.free], rounds)
            else:
                why = why_not_finite(self._tools.engine, "the target's logits", "target")
                order.ticket.send(Refused(500, why))
        self._show(watched)

    def _hand_over(self, order: Order, codes, round_of_token, rounds: int) -> None:
        counters, seconds = self._tools.counters, self._spent - order.began
        try:
            picture = self._tools.draw(codes)
        except Exception as error:  # Its slot is free already, and the pictures in others may still be drawn.
            order.ticket.send(failure(error))
            return
        counters.pictures += 1
        counters.tokens += len(codes)
        counters.rounds += rounds

        def make() -> Done:
            request, settings = order.ticket.request, self._settings.to_json()
            more = {
                "keep_rows": order.ticket.plan.call.keep_rows,
                "negative_prompt": request.negative_prompt or None,
            }
            text = origin_text(str(request.prompt), request.seed, order.index, settings, codes, **more)
            file, digest = request.output.encode(picture, text), tokens_digest(codes)
            return Done(order.index, file, codes, round_of_token, digest, rounds, seconds, order.waited)

        self._tools.send(order.ticket, make)

    def _show(self, watched: list[tuple[Order, Int[np.ndarray, " T"], int]]) -> None:
        """Sends the progress of pictures to clients that asked for it; pictures take turns in being drawn."""
        detailed = [order for order, *_ in watched if order.ticket.request.details]
        turn = min(detailed, key=lambda order: order.sketched, default=None)
        for order, codes, rounds in watched:
            request, known = order.ticket.request, int((codes >= 0).sum())
            parts = request.partial_images + 1
            partial = order.partials if known * parts >= (order.partials + 1) * len(codes) else None
            if not request.stream or (partial is None and not request.details):
                continue
            figures = order.index, known, len(codes), rounds, self._spent - order.began
            sketch, encode = None, encode_png
            if partial is not None:  # OpenAI's clients get no transparency.
                sketch, encode = self._tools.sketch(codes)[..., :3], request.output.encode
                order.partials += 1
            elif order is turn and time.perf_counter() >= self._tools.rested:
                sketch = self._tools.sketch(codes)
            if sketch is not None:
                order.sketched = time.perf_counter()
            self._tools.send(order.ticket, functools.partial(_progress, figures, sketch, encode, partial))


def _progress(figures: tuple, sketch: Any, encode: Callable[[Any], bytes], partial: int | None) -> Progress:
    return Progress(*figures, None if sketch is None else encode(sketch), partial)


def failure(error: Exception) -> Refused:
    """Returns the answer to a failure of decoding; logs bugs."""
    if isinstance(error, NotRefillable):
        return Refused(400, str(error))
    if "RESOURCE_EXHAUSTED" in str(error):
        return Refused(503, "the device has too little memory for this: ask for fewer pictures")
    _log.error("lantern serve: a request failed", exc_info=error)
    # Errors of this library say in one line what is wrong with the model.
    return Refused(500, str(error) if isinstance(error, LanternError) else BUG)


def _rows(orders: list[Order]) -> Conditioning:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(order.row for order in orders))


def _seeds(orders: list[Order]) -> Int[np.ndarray, " n"]:
    return np.array([order.ticket.request.seed for order in orders], np.uint32)


def _numbers(orders: list[Order]) -> Int[np.ndarray, " n"]:
    return np.array([order.index for order in orders])
