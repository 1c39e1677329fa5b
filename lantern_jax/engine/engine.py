"""Starts batches of sequences on devices, advances them some rounds at a time, and finishes them.

It decides which programs there are and how many sequences they take; ``placement`` decides where parameters lie.
Batches come in a few sizes, so that a different number of pictures finds its program compiled.

Axes: n sequences asked for, B sequences of a program (with padding), T stream tokens, C codes of a picture, H W pixels.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree, UInt8

from lantern_jax.decoding import completion, contracts
from lantern_jax.decoding.acceptance import Strict
from lantern_jax.decoding.program import Program
from lantern_jax.decoding.stream import Decoded
from lantern_jax.devices import hosts
from lantern_jax.devices.compilation import run_timed
from lantern_jax.devices.partition import Where
from lantern_jax.engine import programs
from lantern_jax.engine.compiler import Compiler
from lantern_jax.engine.generation import Timing
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.engine.placement import Placement
from lantern_jax.engine.program_cache import ProgramCache, ProgramKey, shape_of
from lantern_jax.engine.programs import Parameters
from lantern_jax.models.vq import VQModel


class Engine:
    """Runs jobs on the devices of this process. Several threads may have runs of their own.

    Args:
        read: where -> ``Parameters`` there; called once, when first needed.
        read_drafter: (name, parameters, where) -> parameters of a drafting that ``read`` left out; likewise.
        tokenizer: the VQ tokenizer, or None if nothing is to be drawn.
        devices: as in ``device_grid``: sequences are spread over groups of devices, and the model is split within
            each group. Processes that share the devices all make the same calls and get the same results.

    Attributes:
        devices: [data, model].
        spans: whether several processes share the devices.
        placement: where the parameters lie.
    """

    def __init__(
        self,
        read: Callable[[Where], Parameters],
        tokenizer: VQModel | None = None,
        devices: Any = None,
        read_drafter: Callable[[str, Parameters, Where], PyTree] | None = None,
    ):
        self._tokenizer, self.placement = tokenizer, Placement(read, read_drafter, devices)
        self.devices, self.spans = self.placement.devices, self.placement.spans
        self._compiler = Compiler(self.placement, tokenizer)
        self._pace: dict[ProgramKey, float] = {}

    def start(
        self, job: Job, conditioning: Any, *, seed: int | Int[np.ndarray, " n"] = 0, first: int = 0,
        numbers: Int[np.ndarray, " n"] | None = None, most: int | None = None,
    ) -> Run:  # fmt: skip
        """Prefills a batch.

        Args:
            conditioning: leaves [n, ...], conditional rows on the host.
            seed, numbers: sequence j of any batch draws from fold_in(key(seed), j). One seed for all, or one
                per sequence.
            first: number of the first sequence if ``numbers`` is None; the others follow.
            most: the most sequences that a program takes; None for no limit.

        Raises:
            LanternError: conditioning that the target does not take; seeds or numbers outside 0 to 2**32 - 1.
        """
        count = contracts.check_rows(conditioning)
        groups, size = self.placement.spread(count, most)
        rows = np.arange(size)
        conditioning = jax.tree.map(lambda leaf: leaf[np.minimum(rows, count - 1)], conditioning)
        numbers = first + np.arange(count) if numbers is None else np.asarray(numbers)
        programs.check_new(job.program, conditioning, seed, numbers)
        seeds = np.broadcast_to(np.asarray(seed, np.int64), numbers.shape)
        # Which tokens were given makes no difference once they are read.
        taken, _ = completion.parts(conditioning)
        key = ProgramKey(
            "advance", size, groups, shape_of(taken, 1), job.program, job.sampling.greedy, job.sampling.filters,
            job.guidance != 1, shape_of(job.rule), own=job.own, name=job.name,
        )  # fmt: skip
        conditioning = self.placement.to_devices(conditioning)
        sequences = self.placement.to_devices(programs.sequence_ids(size, seeds, numbers))

        inputs = self.placement.inputs(job, groups, size)
        beginning = programs.beginning(inputs, conditioning, inputs.guidance)
        starter, compiling = self._compiler.compile_start_and_step(key, beginning, sequences, inputs)
        active = self.placement.to_devices(rows < count)
        (keys, state), seconds = run_timed(starter, beginning.replace(active=active), sequences)
        lengths, timing = hosts.fetched(state.length)[:count], Timing(seconds, 0, compiling)
        one = jax.tree.map(lambda leaf: leaf[:1], taken)
        return Run(job, seeds, numbers, lengths, timing, inputs.replace(keys=keys), state, one, key)

    def advance(self, run: Run, rounds: int | None = None) -> Run:
        """Advances a run by up to ``rounds`` rounds (None: to the end), and donates its state."""
        limit = self.placement.to_devices(np.int32(np.iinfo(np.int32).max if rounds is None else rounds))
        step, compiling = self._compiler.step(run)
        (state, lengths), seconds = run_timed(step, run.inputs, run.state, limit)
        lengths = hosts.fetched(lengths)[: len(run.lengths)]
        timing = run.timing + Timing(decoding=seconds, compiling=compiling)
        return replace(run, lengths=lengths, timing=timing, state=state)

    def refill(
        self, run: Run, slots: Int[np.ndarray, " k"], conditioning: Any, numbers: Int[np.ndarray, " k"],
        seeds: Int[np.ndarray, " k"] | None = None,
    ) -> Run:  # fmt: skip
        """Replaces sequences, finished or not, with new ones, and donates the state of ``run``.

        The new ones get the same tokens as in any other batch.

        Args:
            slots: the slots to fill, of the run's n, each at most once.
            conditioning, numbers: of the new sequences, as in ``start``.
            seeds: likewise; None keeps the seeds of the slots.

        Raises:
            NotRefillable: the target or the drafting keeps state that cannot be separated by sequence.
            LanternError: as ``start``.
        """
        programs.check_new(run.job.program, conditioning, run.seeds if seeds is None else seeds, numbers)
        size, groups = run.key.size, run.key.groups
        places, rows = programs.places(slots, groups, size // groups)
        conditioning = jax.tree.map(lambda leaf: leaf[rows], conditioning)
        held, drawn = run.numbers.copy(), run.seeds.copy()
        held[slots], drawn[slots] = numbers, drawn[slots] if seeds is None else seeds
        new = (conditioning, programs.scales(run.job.guidance, len(rows)))
        new, sequences, places = self.placement.to_devices(
            (new, programs.sequence_ids(size, drawn, held), places)
        )
        inputs = programs.beginning(run.inputs, *new)
        key = replace(run.key, kind="refill", rows=len(rows), shapes=shape_of(conditioning, 1))
        arguments = (inputs, sequences, places, run.state)
        results = self.placement.same_places(run.inputs.keys, run.state)
        run, compiling = self._rewritten(run, key, arguments, results=results, donate="state")
        lengths, timing = run.lengths[: len(held)], run.timing + Timing(compiling=compiling)
        return replace(run, seeds=drawn, numbers=held, lengths=lengths, timing=timing)

    def has_program(self, run: Run, count: int) -> bool:
        """Tells whether the program that advances a run like this one, but of ``count`` slots, is compiled."""
        return replace(run.key, size=count) in self.programs

    def regroup(self, run: Run, slots: Int[np.ndarray, " k"]) -> Run:
        """Returns a run of k slots that continue sequences of another run, which stays as it is.

        There are fewer once some sequences are done, or more before new ones come; until then some appear twice.

        Raises:
            NotRefillable: as ``refill``; or the sequences are spread over several groups of devices.
        """
        if len(self.devices) > 1:
            raise programs.NotRefillable("sequences stay on their group of devices")
        count, guidance = len(slots), run.job.guidance
        seeds, numbers, key = run.seeds[slots], run.numbers[slots], replace(run.key, size=count)
        slots, sequences = np.asarray(slots, np.int32), programs.sequence_ids(count, seeds, numbers)
        any_one, scales = (run.conditioning, programs.scales(guidance, 1)), programs.scales(guidance, count)
        any_one, scales, slots, sequences = self.placement.to_devices((any_one, scales, slots, sequences))
        taking = replace(key, kind="regroup", rows=run.key.size)
        arguments = (programs.beginning(run.inputs, *any_one), sequences, slots, run.state)
        run = replace(run, inputs=run.inputs.replace(guidance=scales))
        results = self.placement.same_places(run.inputs.keys, run.state)
        after, compiling = self._rewritten(run, taking, arguments, results=results)
        after = replace(after, seeds=seeds, numbers=numbers, key=key)
        compiling += self._compiler.step(after)[1]
        return replace(after, timing=after.timing + Timing(compiling=compiling))

    def _rewritten(self, run: Run, key: ProgramKey, arguments: tuple, **options: Any) -> tuple[Run, float]:
        """Runs a program that makes the state of other sequences; returns the run, and the seconds spent compiling."""
        function = partial(getattr(programs, key.kind), run.job.program, self.placement.mesh(key.groups))
        program, compiling = self._compiler.obtain(key, function, *arguments, **options)
        (keys, state, lengths), seconds = run_timed(program, *arguments)
        lengths, inputs = hosts.fetched(lengths), run.inputs.replace(keys=keys)
        timing = run.timing + Timing(decoding=seconds)
        return replace(run, lengths=lengths, inputs=inputs, state=state, timing=timing), compiling

    def advance_for(self, run: Run, seconds: float, most: int | None = None) -> Run:
        """Advances a run by as many rounds as take about ``seconds``, but at most by ``most``.

        The first time that is one round; later the pace is known.
        """
        pace = self._pace.get(run.key)
        rounds = max(1, min(int(seconds / pace), most or run.total)) if pace else 1
        if self.spans:  # Each process measures its own pace.
            rounds = int(hosts.agreed(rounds))
        after = self.advance(run, rounds)
        if not after.done:  # Else fewer rounds may have run.
            if pace is None:
                # The pace of a program that was dropped is dropped too. Another thread may add one meanwhile.
                self._pace = {key: kept for key, kept in list(self._pace.items()) if key in self.programs}
            self._pace[run.key] = (after.timing.decoding - run.timing.decoding) / rounds
        return after

    def program_text(self, run: Run) -> str:
        """Returns the compiled program that advances a batch, as XLA writes it."""
        return self._compiler.step(run)[0].as_text()

    def finish(self, run: Run) -> Decoded:
        """Fetches what is known of the n sequences so far; unfinished streams are known in part."""
        return jax.tree.map(lambda leaf: leaf[: len(run.lengths)], hosts.fetched(run.state.decoded))

    def log_probs(
        self, job: Job, conditioning: Any, tokens: Int[np.ndarray, "n T"], most: int | None = None
    ) -> Float[np.ndarray, "n T"]:
        """Returns log p of the tokens of whole streams under a job's target and sampling (``stream_log_probs``).

        Args:
            conditioning: as in ``start``, without given first tokens.
            tokens: forced ones included.
            most: as in ``start``.
        """
        count = len(tokens)
        groups, size = self.placement.spread(count, most)
        rows = np.minimum(np.arange(size), count - 1)
        given = jax.tree.map(lambda leaf: leaf[rows], (conditioning, np.asarray(tokens, np.int32)))
        job = replace(job, program=Program(job.program.target), rule=Strict(), drafter=None)
        key = ProgramKey(
            "log_probs", size, groups, shape_of(given, 1), job.program, job.sampling.greedy, job.sampling.filters,
            job.guidance != 1,
        )  # fmt: skip
        conditioning, tokens = self.placement.to_devices(given)
        inputs = self.placement.inputs(job, groups, size)
        inputs = programs.beginning(inputs, conditioning, inputs.guidance)
        function = partial(programs.log_probs, job.program, self.placement.mesh(groups))
        program, _ = self._compiler.obtain(key, function, inputs, tokens)
        return hosts.fetched(program(inputs, tokens))[:count]

    def draw(
        self, tokens: Int[np.ndarray, "n C"], most: int | None = None
    ) -> tuple[UInt8[np.ndarray, "n H W 3"], Bool[np.ndarray, " n"], Timing]:
        """Draws codes; returns pictures, which of them are finite (the others are meaningless), and the seconds."""
        (pictures, finite), timing = self._with_tokenizer("draw", np.asarray(tokens, np.int32), most)
        return pictures, finite, timing

    def encode(self, pictures: UInt8[np.ndarray, "n H W 3"]) -> Int[np.ndarray, "n C"]:
        """Encodes pictures as codes; raises LanternError for sides that do not divide into codes."""
        return self._with_tokenizer("encode", pictures, None)[0]

    def _with_tokenizer(self, kind: str, rows: np.ndarray, most: int | None) -> tuple[Any, Timing]:
        """Runs one of the tokenizer's programs on rows, as many per pass as it takes, and fetches the results."""
        program, parameters, size, compiling = self._compiler.of_tokenizer(kind, rows, most)
        passes, drawing = [], 0.0
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            padded = np.pad(part, [(0, size - len(part)), *[(0, 0)] * (part.ndim - 1)])
            results, seconds = run_timed(program, parameters, self.placement.to_devices(padded))
            passes.append(hosts.fetched(results))
            drawing += seconds
        results = jax.tree.map(lambda *parts: np.concatenate(parts)[: len(rows)], *passes)
        return results, Timing(drawing=drawing, compiling=compiling)

    def compile_drawing(self, count: int, codes: int, most: int | None = None) -> None:
        """Compiles in a thread what ``draw`` needs for ``count`` pictures of C ``codes``, unless it exists already."""
        self._compiler.begin_drawing(np.zeros((count, codes), np.int32), most)

    @property
    def programs(self) -> ProgramCache:
        """The compiled programs, by ``ProgramKey``; runs recompile those dropped meanwhile."""
        return self._compiler.programs

    @programs.setter
    def programs(self, programs: ProgramCache) -> None:
        self._compiler.programs = programs

    @property
    def parameters(self) -> Parameters:
        """The parameters on the devices, read when first asked for."""
        return self.placement.parameters

    def drafter(self, name: str) -> PyTree:
        """Returns the parameters of a drafting on the devices, read when first asked for."""
        return self.placement.drafter(name)
