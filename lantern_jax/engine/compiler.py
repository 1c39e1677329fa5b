"""Compiles an engine's programs, those for a first picture in parallel: XLA releases the interpreter's lock."""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lantern_jax.decoding.program import Inputs, State
from lantern_jax.devices import hosts, kept
from lantern_jax.devices.compilation import apart, compile_ahead, options
from lantern_jax.devices.partition import places_of
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Run
from lantern_jax.engine.placement import Placement
from lantern_jax.engine.program_cache import ProgramCache, ProgramKey, shape_of
from lantern_jax.engine.programs import SequenceIds
from lantern_jax.models.vq import VQModel

Compiled = tuple[Callable, float]  # a program, and the seconds spent compiling it


class Compiler:
    """Compiles programs for the devices that hold an engine's parameters.

    Attributes:
        programs: the compiled programs, by ``ProgramKey``.
    """

    def __init__(self, placement: Placement, tokenizer: VQModel | None):
        self._placement, self._tokenizer, self.programs = placement, tokenizer, ProgramCache()

    def obtain(
        self, key: ProgramKey, function: Callable, *arguments: Any,
        late: Callable[[], tuple[tuple, dict[str, Any]]] | None = None, **how: Any,
    ) -> Compiled:  # fmt: skip
        """Compiles a program unless it is in memory or on disk; returns it and the seconds.

        All processes that share it compile it.

        Args:
            late: returns the arguments and options to compile for, if they are others: ``arguments`` may lack keys and
                state, which only tracing tells.
        """

        def make() -> Compiled:
            began, place = time.perf_counter(), self._place(key, arguments)
            program = kept.load_program(place, self._placement.devices[0, 0])
            if program is not None:
                return program, time.perf_counter() - began
            with self._placement.tracing(), apart(place is not None and kept.read(place) is not False):
                given, more = (arguments, how) if late is None else late()
                compiled = compile_ahead(function, *given, repeats=key.kind == "advance", **more)
            if self._placement.spans:
                hosts.wait()
            kept.keep_program(place, compiled[0])
            return compiled

        return self.programs.obtain(key, make)

    def _place(self, key: ProgramKey, arguments: tuple) -> Path | None:
        """Returns the file that keeps a program; None if none is kept, as for several devices."""
        placement = self._placement
        if not key.name or placement.spans or placement.mesh(key.groups) is not None:
            return None
        # Without keys and state: an earlier program of the same parts makes them.
        arguments = tuple(
            one.replace(keys=None) if isinstance(one, Inputs) else one
            for one in arguments
            if not isinstance(one, State)
        )
        device, key = placement.devices[0, 0], replace(key, program=None)
        return kept.place_of(
            key, shape_of(arguments), options(device.platform, key.kind == "advance"), device=device
        )

    def compile_start_and_step(
        self, key: ProgramKey, beginning: Inputs, sequences: SequenceIds, inputs: Inputs
    ) -> Compiled:
        """Compiles the programs that begin and advance a batch; returns the first, and the seconds.

        If either is new, both run once, for one round, so that the set-up of a first execution counts as compiling.
        """
        start_key = replace(key, kind="start", rule=None, shapes=shape_of(beginning.conditioning, 1))
        starter = self.programs.get(start_key)
        if starter is not None and key in self.programs:
            return starter, 0.0
        began, mesh = time.perf_counter(), self._placement.mesh(key.groups)
        active, one = self._placement.to_devices((np.ones(key.size, bool), np.int32(1)))
        begin, first = partial(programs.start, key.program, mesh), beginning.replace(active=active)

        def new_state() -> tuple:
            return self._placement.state_shapes(jax.eval_shape(begin, first, sequences), key.groups)

        def starting() -> tuple[tuple, dict[str, Any]]:
            return (first, sequences), {"results": places_of(new_state())}

        def stepping() -> tuple[tuple, dict[str, Any]]:
            keys, state = new_state()
            return (inputs.replace(keys=keys), state, one), self._donating(state)

        with ThreadPoolExecutor(1, "lantern-compile") as beside:
            # Over several devices the first program decides how the state is split.
            if mesh is None and not self._placement.spans:
                beside.submit(self.obtain, key, self._step(key), inputs, one, late=stepping)
            late = starting if self._placement.has_layouts else None
            starter, _ = self.obtain(start_key, begin, first, sequences, late=late)
            keys, state = jax.block_until_ready(starter(first, sequences))
        inputs = inputs.replace(keys=keys)
        step, _ = self._advancing(key, inputs, state, one)
        jax.block_until_ready(step(inputs, state, one))
        return starter, time.perf_counter() - began

    def step(self, run: Run) -> Compiled:
        """Returns the program that advances a run, and the seconds spent compiling it again if it was dropped."""
        return self._advancing(run.key, run.inputs, run.state, self._placement.to_devices(np.int32(1)))

    def _advancing(self, key: ProgramKey, inputs: Inputs, state: State, rounds: Any) -> Compiled:
        return self.obtain(key, self._step(key), inputs, state, rounds, **self._donating(state))

    def _donating(self, state: State) -> dict[str, Any]:
        return {"donate": "state", "results": self._placement.same_places(state)}

    def _step(self, key: ProgramKey) -> Callable:
        return partial(programs.advance, key.program, self._placement.mesh(key.groups))

    def of_tokenizer(
        self, kind: str, rows: np.ndarray, most: int | None
    ) -> tuple[Callable, PyTree, int, float]:
        """Returns the tokenizer's program for rows, its parameters, the rows per pass, and the seconds of compiling."""
        key = self._tokenizer_key(kind, rows, most)
        is_new = key not in self.programs
        parameters = self._placement.on(key.groups).tokenizer
        function = partial(getattr(programs, kind), self._tokenizer, self._placement.mesh(key.groups))
        padded = self._placement.to_devices(np.zeros((key.size, *rows.shape[1:]), rows.dtype))
        began = time.perf_counter()
        program, _ = self.obtain(key, function, parameters, padded)
        # Another thread may have been compiling it.
        return program, parameters, key.size, time.perf_counter() - began if is_new else 0.0

    def begin_drawing(self, rows: np.ndarray, most: int | None) -> None:
        """Starts a thread that compiles the program for drawing rows of codes, unless it exists already."""
        if self._placement.spans or self._tokenizer_key("draw", rows, most) in self.programs:
            return

        def compile_quietly() -> None:
            # An error here occurs again when pictures are drawn.
            with contextlib.suppress(BaseException):
                self.of_tokenizer("draw", rows, most)

        threading.Thread(target=compile_quietly, name="lantern-compile").start()

    def _tokenizer_key(self, kind: str, rows: np.ndarray, most: int | None) -> ProgramKey:
        # A row is a picture [H, W, 3], or its codes [C].
        shape, devices = rows.shape[1:], self._placement.devices
        pixels = math.prod(shape[:2]) * (1 if kind == "encode" else self._tokenizer.config.downsampling**2)
        most = programs.pictures_per_pass(pixels, devices.size, most)
        groups, size = self._placement.spread(min(len(rows), most), most)
        if kind == "encode":
            # Parameters already on more groups of devices stay there: what is encoded is decoded on those.
            groups = max(groups, self._placement.groups)
        size += -size % (groups * devices.shape[1])
        return ProgramKey(kind, size, groups, (shape,), name=repr(self._tokenizer))
