"""Compiled programs on devices: batches of sequences are started, advanced some rounds at a time, and finished.

How many sequences a program takes, and which programs there are, is decided here; how a model lies on devices, in
``partition``. A batch has one of a few sizes, so that another number of pictures finds its program compiled.

Axes: n sequences asked for, B sequences of a program (with padding), T stream tokens, C codes of a picture, H W pixels.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int, PyTree, UInt8

from lantern_jax.decoding import completion
from lantern_jax.decoding.stream import Decoded
from lantern_jax.devices import hosts
from lantern_jax.devices.compilation import compile_ahead, run_timed
from lantern_jax.devices.partition import Where, device_grid, everywhere, mesh_of, place, where_on
from lantern_jax.engine import programs
from lantern_jax.engine.generation import Timing
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.engine.program_cache import ProgramCache, of_size, shapes
from lantern_jax.engine.programs import Parameters
from lantern_jax.models.vq import VQModel

_Compiled = tuple[Callable, float]  # a program, and the seconds that compiling it took


class Engine:
    """Runs jobs on the devices of this process. Several threads may have runs of their own.

    Args:
        read: where -> ``Parameters`` there; called once, when first needed.
        read_drafter: (name, parameters, where) -> those of a drafting that ``read`` left out; likewise.
        tokenizer: the VQ tokenizer, or None where nothing is to be drawn.
        devices: as in ``device_grid``: sequences are spread over groups of them, the model is split within each. Where
            they are those of several processes, all of these make the same calls, and get the same results.

    Attributes:
        devices: those, [data, model].
        spans: whether they are those of several processes.
        programs: what was compiled, by (kind, B, what else decides it); runs compile again what was dropped meanwhile.
    """

    def __init__(
        self,
        read: Callable[[Where], Parameters],
        tokenizer: VQModel | None = None,
        devices: Any = None,
        read_drafter: Callable[[str, Parameters, Where], PyTree] | None = None,
    ):
        self._read, self._read_drafter, self._tokenizer = read, read_drafter, tokenizer
        self.devices = device_grid(devices)
        self.spans = hosts.spans(self.devices)
        self._parameters: Parameters | None = None
        self._spread = 0
        self._reading = threading.RLock()
        self.programs = ProgramCache()
        self._pace: dict[Any, float] = {}

    def start(
        self, job: Job, conditioning: Any, *, seed: int | Int[np.ndarray, " n"] = 0, first: int = 0,
        numbers: Int[np.ndarray, " n"] | None = None, most: int | None = None,
    ) -> Run:  # fmt: skip
        """Prefills a batch.

        Args:
            conditioning: leaves [n, ...], conditional rows on the host.
            seed, numbers: sequence j, whatever the batch, draws from fold_in(key(seed), j). One seed for all, or each
                sequence has a seed of its own.
            first: number of the first sequence where ``numbers`` is None; the others follow.
            most: a program takes no more sequences than this; None for no limit.

        Raises:
            ValueError: conditioning that the target does not take; seeds or numbers that are not 0 to 2**32 - 1.
        """
        count = len(jax.tree.leaves(conditioning)[0])
        groups, size = self._spread_over(count, most)
        rows = np.arange(size)
        conditioning = jax.tree.map(lambda leaf: leaf[np.minimum(rows, count - 1)], conditioning)
        numbers = first + np.arange(count) if numbers is None else np.asarray(numbers)
        programs.check_new(job.program, conditioning, seed, numbers)
        seeds = np.broadcast_to(np.asarray(seed, np.int64), numbers.shape)
        parameters, mesh = self._on_devices(groups), mesh_of(self.devices[:groups])
        drafting = None if job.drafter is None else self.drafter(job.drafter)
        codebook = None if job.rule.is_strict else parameters.codebook
        guidance = programs.scales(job.guidance, size)
        shared = self._given((parameters.target, drafting, guidance, job.sampling, job.rule, codebook))
        begin = self._given(programs.begin(job.guidance, shared, conditioning, seeds, numbers, size))

        statics = (job.program, job.sampling.greedy, job.sampling.filters, guidance is None)
        # Whether first tokens are given is of no matter once they are read.
        taken, _ = completion.parts(conditioning)
        begin_key = ("start", size, groups, *statics, shapes(conditioning))
        step_key = ("advance", size, groups, *statics, jax.tree.structure(job.rule), shapes(taken))
        starter, compiling = self._compile_both(begin_key, step_key, job.program, mesh, begin, shared, size)
        (keys, state), seconds = run_timed(starter, *begin, self._given(rows < count))
        lengths, timing = hosts.fetched(state.length)[:count], Timing(seconds, 0, compiling)
        one = jax.tree.map(lambda leaf: leaf[:1], taken)
        return Run(job, seeds, numbers, lengths, timing, keys, state, shared, one, step_key)

    def advance(self, run: Run, rounds: int | None = None) -> Run:
        """At most so many rounds more; None until all sequences are done. The state of ``run`` is used up."""
        limit = self._given(np.int32(np.iinfo(np.int32).max if rounds is None else rounds))
        step, compiling = self._step(run)
        (state, lengths), seconds = run_timed(step, *run.shared, run.keys, run.state, limit)
        lengths = hosts.fetched(lengths)[: len(run.lengths)]
        timing = run.timing + Timing(decoding=seconds, compiling=compiling)
        return replace(run, lengths=lengths, timing=timing, state=state)

    def refill(
        self, run: Run, slots: Int[np.ndarray, " k"], conditioning: Any, numbers: Int[np.ndarray, " k"],
        seeds: Int[np.ndarray, " k"] | None = None,
    ) -> Run:  # fmt: skip
        """New sequences in place of others, finished or not; the state of ``run`` is used up. Their tokens are those
        that they have in any other batch.

        Args:
            slots: of the n of the run, each once.
            conditioning, numbers: of the new sequences, as in ``start``.
            seeds: likewise; None for those of the slots.

        Raises:
            NotRefillable: the target or the drafting keeps a state that cannot be told apart by sequence.
            ValueError: as ``start``.
        """
        programs.check_new(run.job.program, conditioning, run.seeds if seeds is None else seeds, numbers)
        _, size, groups, *others = run.program
        places, rows = programs.places(slots, groups, size // groups)
        conditioning = jax.tree.map(lambda leaf: leaf[rows], conditioning)
        held, drawn = run.numbers.copy(), run.seeds.copy()
        held[slots], drawn[slots] = numbers, drawn[slots] if seeds is None else seeds
        begin = programs.begin(run.job.guidance, run.shared, conditioning, drawn, held, size)
        begin, places = self._given((begin, places))
        key = ("refill", len(rows), size, groups, *others, shapes(conditioning))
        function = partial(programs.refill, run.job.program, mesh_of(self.devices[:groups]))
        options = {"donate_argnums": 8, "results": self._kept(run.keys, run.state)}
        program, compiling = self._compile(key, function, *begin, places, run.state, **options)
        (keys, state, lengths), seconds = run_timed(program, *begin, places, run.state)
        timing = run.timing + Timing(decoding=seconds, compiling=compiling)
        lengths = hosts.fetched(lengths)[: len(held)]
        return replace(run, seeds=drawn, numbers=held, lengths=lengths, timing=timing, keys=keys, state=state)

    def has_program(self, run: Run, count: int) -> bool:
        """Whether a run of so many slots, else like this one, finds the program that advances it."""
        return of_size(run.program, count) in self.programs

    def regroup(self, run: Run, slots: Int[np.ndarray, " k"]) -> Run:
        """A run of k slots, each of which goes on with the sequence of one of another's: fewer once others are done, or
        more before new ones come, some of them twice until then. The other stays as it is.

        Raises:
            NotRefillable: as ``refill``; or the sequences are spread over several groups of devices.
        """
        if len(self.devices) > 1:
            raise programs.NotRefillable("sequences stay on their group of devices")
        count, job, mesh = len(slots), run.job, mesh_of(self.devices)
        seeds, numbers, step_key = run.seeds[slots], run.numbers[slots], of_size(run.program, count)
        target, drafting, _, *others = run.shared
        shared = self._given((target, drafting, programs.scales(job.guidance, count), *others))
        begin = self._given(programs.begin(job.guidance, shared, run.conditioning, seeds, numbers, count))
        slots, one = self._given((np.asarray(slots, np.int32), np.int32(1)))
        key, results = ("regroup", count, *run.program[1:]), self._kept(run.keys, run.state)
        take = partial(programs.regroup, job.program, mesh)
        taker, compiling = self._compile(key, take, *begin, slots, run.state, results=results)
        (keys, state, lengths), seconds = run_timed(taker, *begin, slots, run.state)
        compiling += self._compile_step(step_key, job.program, mesh, shared, keys, state, one)[1]
        return replace(
            run, seeds=seeds, numbers=numbers, lengths=hosts.fetched(lengths), keys=keys, state=state, shared=shared,
            timing=run.timing + Timing(decoding=seconds, compiling=compiling), program=step_key,
        )  # fmt: skip

    def advance_for(self, run: Run, seconds: float, most: int | None = None) -> Run:
        """As ``advance``, by as many rounds as take so long and no more than ``most``: one to begin with, then by the
        pace of earlier pieces."""
        pace = self._pace.get(run.program)
        rounds = max(1, min(int(seconds / pace), most or run.total)) if pace else 1
        if self.spans:  # Every process has a pace of its own.
            rounds = int(hosts.agreed(rounds))
        after = self.advance(run, rounds)
        if not after.done:  # Else it may have been fewer.
            if pace is None:  # Those of programs that were dropped are not kept either.
                self._pace = {key: kept for key, kept in self._pace.items() if key in self.programs}
            self._pace[run.program] = (after.timing.decoding - run.timing.decoding) / rounds
        return after

    def program_text(self, run: Run) -> str:
        """The compiled program that advances a batch, as XLA writes it down."""
        return self._step(run)[0].as_text()

    def finish(self, run: Run) -> Decoded:
        """What is known of the n sequences, on the host; streams that are not done yet are known in part."""
        return jax.tree.map(lambda leaf: leaf[: len(run.lengths)], hosts.fetched(run.state.decoded))

    def draw(
        self, tokens: Int[np.ndarray, "n C"], most: int | None = None
    ) -> tuple[UInt8[np.ndarray, "n H W 3"], Bool[np.ndarray, " n"], Timing]:
        """Pictures of their codes, and which are all numbers (others mean nothing); ValueError for unknown codes."""
        programs.check_codes(self._tokenizer, tokens)
        (pictures, finite), timing = self._with_tokenizer("draw", np.asarray(tokens, np.int32), most)
        return pictures, finite, timing

    def encode(self, pictures: UInt8[np.ndarray, "n H W 3"]) -> Int[np.ndarray, "n C"]:
        """The codes of pictures; ValueError where their sides do not divide into codes, or they are not uint8."""
        programs.check_pictures(pictures)
        return self._with_tokenizer("encode", pictures, None)[0]

    def _with_tokenizer(self, kind: str, rows: np.ndarray, most: int | None) -> tuple[Any, Timing]:
        """What the tokenizer's program of a kind makes of rows, on the host."""
        groups, size = self._spread_over(len(rows), most)
        size += -size % (groups * self.devices.shape[1])
        parameters, mesh = self._on_devices(groups).tokenizer, mesh_of(self.devices[:groups])
        padded = self._given(np.pad(rows, [(0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)]))
        key = (kind, size, groups, rows.shape[1:])
        function = partial(getattr(programs, kind), self._tokenizer, mesh)
        program, compiling = self._compile(key, function, parameters, padded)
        results, seconds = run_timed(program, parameters, padded)
        results = jax.tree.map(lambda leaf: leaf[: len(rows)], hosts.fetched(results))
        return results, Timing(drawing=seconds, compiling=compiling)

    @property
    def parameters(self) -> Parameters:
        """The parameters where they lie, read if they were not yet."""
        return self._on_devices(self._spread or self._spread_over(1, None)[0])

    def drafter(self, name: str) -> PyTree:
        """The parameters of the drafting of that name, where the others lie, read if they were not yet."""
        with self._reading:
            parameters = self.parameters
            if name not in parameters.drafters:
                drafter = self._read_drafter(name, parameters, where_on(self.devices[: self._spread]))
                drafters = {**parameters.drafters, name: jax.block_until_ready(drafter)}
                self._parameters = replace(parameters, drafters=drafters)
            return self._parameters.drafters[name]

    def _compile(self, key: tuple, function: Callable, *arguments: Any, **options: Any) -> _Compiled:
        """A program, compiled unless it is there on all processes that have a part in it, and the seconds of that."""

        def make() -> _Compiled:
            compiled = compile_ahead(function, *arguments, **options)
            if self.spans:
                hosts.wait()
            return compiled

        return self.programs.obtain(key, make)

    def _compile_both(self, begin_key, step_key, program, mesh, begin, shared, size) -> _Compiled:
        """The program that begins a batch, and the seconds of what is done unless it and the one that advances it are
        there: both are compiled, and run once with nothing to do."""
        starter = self.programs.get(begin_key)
        if starter is not None and step_key in self.programs:
            return starter, 0.0
        idle, one = self._given((np.zeros(size, bool), np.int32(1)))
        starter, seconds = self._compile(begin_key, partial(programs.start, program, mesh), *begin, idle)
        # What a first execution sets up counts as compiling.
        (keys, state), spent = run_timed(starter, *begin, idle)
        step, more = self._compile_step(step_key, program, mesh, shared, keys, state, one)
        return starter, seconds + spent + more + run_timed(step, *shared, keys, state, one)[1]

    def _step(self, run: Run) -> _Compiled:
        """The program that advances a run, and the seconds of compiling it where it was dropped meanwhile."""
        step = self.programs.get(run.program)
        if step is not None:
            return step, 0.0
        mesh, one = mesh_of(self.devices[: run.program[2]]), self._given(np.int32(1))
        return self._compile_step(run.program, run.job.program, mesh, run.shared, run.keys, run.state, one)

    def _compile_step(self, step_key, program, mesh, shared, keys, state, rounds) -> _Compiled:
        """The program that advances a batch, compiled unless it is there, and the seconds of that."""
        step, results = partial(programs.advance, program, mesh), self._kept(state)
        return self._compile(step_key, step, *shared, keys, state, rounds, donate_argnums=7, results=results)

    def _given(self, values: PyTree) -> PyTree:
        """Values of the host as programs take them: one over several processes wants arrays on all its devices."""
        return everywhere(values, mesh_of(self.devices)) if self.spans else values

    def _spread_over(self, count: int, most: int | None) -> tuple[int, int]:
        """As ``programs.spread``; of several processes each must have a part in every program."""
        groups = len(self.devices)
        return programs.spread(max(count, groups) if self.spans else count, groups, most)

    def _kept(self, *results: PyTree) -> tuple | None:
        """Results stay where they are, lengths after them anywhere; without a model axis there is no choice."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, results)
        return None if self.devices.shape[1] == 1 else (*shardings, None)

    def _on_devices(self, groups: int) -> Parameters:
        """The parameters where programs for that many groups want them, moved when the number changes."""
        with self._reading:
            if groups != self._spread:
                where = where_on(self.devices[:groups])
                parameters = self._parameters or self._read(where)
                parts = jax.block_until_ready(place(vars(parameters), where))
                self._parameters, self._spread = Parameters(**parts), groups
            return self._parameters
