"""Runs one call of a pipeline: its pictures, batch by batch, a piece at a time.

Axes: n pictures of a call, B pictures of a batch, T codes of a picture, H W height and width.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from lantern_jax.decoding import completion
from lantern_jax.decoding.stream import Decoded
from lantern_jax.devices import hosts
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import (
    Generation,
    Interrupted,
    Picture,
    Progress,
    Timing,
    compared,
    summarise,
)
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.engine.programs import NotRefillable
from lantern_jax.families.registry import family_of
from lantern_jax.io.errors import LanternError
from lantern_jax.io.interruption import raise_if_signalled
from lantern_jax.pipeline.call import Call
from lantern_jax.pipeline.drawing import draw_codes, why_not_finite
from lantern_jax.pipeline.notebook import bar, is_notebook
from lantern_jax.settings.recipe import Recipe
from lantern_jax.text.encoders import Conditioning

# The seconds that a piece of work should take: progress is reported and Ctrl-C handled between two pieces. To begin one
# costs some 2 ms on a CPU, which is 4 % of a pass over 57 nodes.
PIECE_SECONDS = 0.4


@dataclass(frozen=True)
class Plan:
    """A call and what runs it; nothing is computed before ``run``.

    Attributes:
        call: what it makes, and how.
        recipe, engine: what decodes.
        draws: whether pictures can be drawn.
        encode: returns the conditioning, leaves [prompts, ...] on the host.
        complete: turns that into a ``Completion`` of given pictures; None without any.
    """

    call: Call
    recipe: Recipe
    engine: Engine
    draws: bool
    encode: Callable[[], Conditioning]
    complete: Callable[[Conditioning], Conditioning] | None = None

    @cached_property
    def conditioning(self) -> Conditioning:
        """The encoded prompts; a text encoder is read, and dropped, when this is first asked for."""
        encoded = self.encode()
        return encoded if self.complete is None else self.complete(encoded)

    @cached_property
    def free(self) -> Int[np.ndarray, " T"]:
        """Positions of the token stream that are the picture's codes; the format forces the others."""
        return np.flatnonzero(self.recipe.target().forced < 0)

    @property
    def given(self) -> int:
        """Number of a stream's first tokens that are given (``decoding.completion``)."""
        _, tokens = completion.parts(self.conditioning)
        return 0 if tokens is None else tokens.shape[1]

    @property
    def _given_codes(self) -> int:
        return int(np.sum(self.free < self.given))

    def product(self, tokens: Int[np.ndarray, "n T"]) -> Mapping[str, np.ndarray]:
        """Returns what other software draws pictures from, arrays by name with a row for each picture; for models whose
        pictures are not drawn here."""
        config = self.recipe.config
        made = family_of(config).product
        return {} if made is None else made(config, tokens)

    @property
    def job(self) -> Job:
        """How a batch is decoded."""
        return self.recipe.job(self.call.settings)

    def run(
        self,
        progress: Callable[[Progress], None] | None = None,
        compare: bool = False,
        log_probs: bool = False,
    ) -> Generation:
        """Decodes and draws all pictures; arguments and errors are those of ``Pipeline.generate``.

        After Ctrl-C, another one while what is known is drawn leaves out the pictures that are not drawn yet.
        """
        if progress is None and is_notebook():
            with bar(self.call.count) as shown:
                return self.run(shown, compare, log_probs)
        if not compare:
            return self._generate(progress, log_probs)

        def first(one: Progress) -> None:
            progress(dataclasses.replace(one, total=2 * one.total, count=2 * one.count))

        def second(one: Progress) -> None:
            pictures = ours.statistics.pictures + one.pictures
            seconds = ours.statistics.seconds + one.seconds
            progress(Progress(one.total + one.tokens, 2 * one.total, pictures, 2 * one.count, seconds))

        ours = self._generate(progress and first, log_probs)
        try:
            plain = self._generate(progress and second, log_probs, plain=True)
            return compared(ours, plain, self._given_codes)
        except KeyboardInterrupt:
            raise Interrupted(ours) from None

    def _generate(self, progress, log_probs: bool, plain: bool = False) -> Generation:
        count, batch = self.call.count, self.call.settings.batch
        drawn: tuple[_Part, ...] = ()
        waiting: tuple[_Part, ...] = ()
        # Of the batches before, and of this one.
        spent, running = Timing(), Timing()
        job = self.recipe.job(self.call.settings, plain)
        # Encoded here, where no picture can be finished yet.
        _ = self.conditioning
        if self.draws:
            self.engine.compile_drawing(min(count, batch), len(self.free), batch)
        try:
            for part in batches(count, batch):
                for run, fresh in self._pieces(job, part):
                    running = run.timing
                    waiting = waiting if fresh is None else (*waiting, fresh)
                    if progress is not None:
                        # Positions of the stream, forced ones included: the share of the picture all the same.
                        known = part.start * run.total + int(run.lengths.sum())
                        pictures = part.start + int(run.finished.sum())
                        seconds = (spent + running).decoding
                        progress(Progress(known, count * run.total, pictures, count, seconds))
                # One assignment, so that Ctrl-C neither loses nor duplicates a picture.
                drawn, waiting = self._draw_waiting(drawn, waiting)
                spent, running = spent + running, Timing()
            made = self._generation(drawn, spent)
            return dataclasses.replace(made, log_probs=self._log_probs(made)) if log_probs else made
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                # As many as in the batches before, whose program is compiled.
                drawn, waiting = self._draw_waiting(drawn, waiting, min(count, batch))
            raise Interrupted(self._generation(drawn, spent + running) if drawn else None) from None

    def _log_probs(self, made: Generation) -> Float[np.ndarray, "n T"]:
        target, count = self.recipe.target(), len(made.tokens)
        streams = np.tile(target.forced, (count, 1))
        streams[:, self.free] = made.tokens
        rows, batch, found = (made.numbers - self.call.first) // self.call.num, self.call.settings.batch, []
        for part in batches(count, batch):
            conditioning, _ = completion.parts(self._rows(rows[part]))
            found.append(self.engine.log_probs(self.job, conditioning, streams[part], batch))
        return np.where(self.free < self.given, np.float32(0), np.concatenate(found)[:, self.free])

    def pictures(self) -> Iterator[Picture]:
        """Yields each picture as soon as its tokens are known."""
        for part in batches(self.call.count, self.call.settings.batch):
            for run, fresh in self._pieces(self.job, part):
                if fresh is None:
                    continue
                # A program for fewer groups of devices would move the parameters.
                drawn = self._with_pictures([fresh], run.key.groups)
                for row, number in enumerate(drawn.numbers):
                    yield Picture(
                        number=self.call.first + int(number),
                        prompt=self.call.prompts[number // self.call.num],
                        picture=None if drawn.pictures is None else drawn.pictures[row],
                        tokens=drawn.decoded.tokens[row],
                        rounds=int(drawn.decoded.rounds[row]),
                    )

    def stream(
        self, job: Job, numbers: Int[np.ndarray, " k"], rows: Int[np.ndarray, " k"], refill: bool = True
    ) -> Iterator[tuple[Run, "_Part | None"]]:
        """Decodes sequences of any numbers and yields, piece by piece, how far they are and those that are newly done.

        They share ``settings.batch`` slots, each of which takes the next sequence as soon as its own is done. Without
        ``refill``, or if the drafting's state forbids it, a batch is finished before the next one begins.

        Args:
            numbers: from 0, in the order in which they begin.
            rows: of the conditioning, one for every number.
        """
        taken, batch = 0, self.call.settings.batch
        while taken < len(numbers):
            begun = slice(taken, taken + batch)
            fresh, first = self._rows(rows[begun]), self.call.first + numbers[begun]
            run = self.engine.start(job, fresh, seed=self.call.seed, numbers=first, most=batch)
            taken += len(run.numbers)
            live = np.ones(len(run.numbers), bool)
            while True:
                new = run.finished & live
                live = live & ~new
                yield run, self._part(run.numbers[new] - self.call.first, run, new) if new.any() else None
                raise_if_signalled()
                slots = np.flatnonzero(~live)[: len(numbers) - taken] if refill else np.arange(0)
                if len(slots):
                    begun = slice(taken, taken + len(slots))
                    fresh, first = self._rows(rows[begun]), self.call.first + numbers[begun]
                    try:
                        run = self.engine.refill(run, slots, fresh, first)
                        live[slots], taken = True, begun.stop
                    except NotRefillable:
                        refill = False
                if not live.any():
                    break
                most = until_next(run, live, self.given) if refill and taken < len(numbers) else None
                run = self.engine.advance_for(run, PIECE_SECONDS, most)

    def _rows(self, rows: Int[np.ndarray, " n"]) -> Conditioning:
        return jax.tree.map(lambda leaf: leaf[rows], self.conditioning)

    def _pieces(self, job: Job, part: slice) -> Iterator[tuple[Run, "_Part | None"]]:
        """Decodes a batch and yields, piece by piece, how far it is and the sequences that are newly done."""
        numbers = np.arange(part.start, part.stop)
        return self.stream(job, numbers, numbers // self.call.num, refill=False)

    def _part(self, numbers, run: Run, new) -> "_Part":
        decoded = jax.tree.map(lambda leaf: leaf[new], self.engine.finish(run))
        if not decoded.finite.all():
            wrong = self.call.first + np.asarray(numbers)[~decoded.finite]
            raise LanternError(why_not_finite(self.engine, "the target's logits", "target", wrong))
        tokens, rounds = decoded.tokens[:, self.free], decoded.round_of_token[:, self.free]
        return _Part(numbers, decoded.replace(tokens=tokens, round_of_token=rounds))

    def _draw_waiting(self, drawn: "tuple[_Part, ...]", waiting: "tuple[_Part, ...]", least: int = 0):
        """Draws what waits, with a program for at least ``least`` pictures; returns what is drawn and waits then."""
        return ((*drawn, self._with_pictures(waiting, least)), ()) if waiting else (drawn, waiting)

    def _with_pictures(self, stashed: Sequence["_Part"], least: int = 0) -> "_Part":
        """Joins the sequences of several parts in the order of their numbers, and draws them."""
        numbers = np.concatenate([part.numbers for part in stashed])
        order = np.argsort(numbers)
        decoded = jax.tree.map(
            lambda *leaves: np.concatenate(leaves)[order], *(part.decoded for part in stashed)
        )
        if not self.draws:
            return _Part(numbers[order], decoded)
        count = len(numbers)
        tokens = np.resize(decoded.tokens, (max(count, least), decoded.tokens.shape[1]))
        named = self.call.first + np.resize(numbers[order], len(tokens))
        pictures, timing = draw_codes(self.engine, tokens, self.call.settings.batch, named)
        return _Part(numbers[order], decoded, pictures[:count], timing)

    def _generation(self, parts: "Sequence[_Part]", decoding: Timing) -> Generation:
        numbers = np.concatenate([part.numbers for part in parts])
        decoded = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.decoded for part in parts))
        return Generation(
            prompts=tuple(self.call.prompts[number // self.call.num] for number in numbers),
            pictures=np.concatenate([part.pictures for part in parts]) if self.draws else None,
            tokens=decoded.tokens,
            round_of_token=decoded.round_of_token,
            statistics=summarise(decoded, sum((part.timing for part in parts), decoding), self._given_codes),
            numbers=(self.call.first + numbers).astype(np.int64),
            notes=self.call.notes,
            settings=self.call.settings.to_json(),
        )


@dataclass(frozen=True)
class _Part:
    """Finished sequences of a batch.

    Attributes:
        numbers: from 0.
        decoded: their codes alone.
        pictures: None before they are drawn.
        timing: of drawing them.
    """

    numbers: Int[np.ndarray, " B"]
    decoded: Decoded
    pictures: UInt8[np.ndarray, "B H W 3"] | None = None
    timing: Timing = field(default_factory=Timing)


def batches(count: int, most: int) -> Iterator[slice]:
    """Yields the slices of ``count`` sequences in batches of at most ``most``."""
    for start in range(0, count, most):
        yield slice(start, min(start + most, count))


def until_next(run: Run, live: Bool[np.ndarray, " n"], given: int) -> int:
    """Estimates how many rounds it takes until one of these is done, from their mean pace so far."""
    rounds = hosts.fetched(run.state.decoded.rounds)[: len(live)][live].sum()
    pace = max(run.lengths[live].sum() - live.sum() * max(given, 1), 1) / max(rounds, 1)
    return max(1, int((run.total - run.lengths[live].max()) / pace))
