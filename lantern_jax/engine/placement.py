"""Where parameters and batches lie: on one device group or all, each device with a copy of the model or a share of it.

Axes: n sequences asked for, B sequences of a program (with padding).
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from lantern_jax.decoding.program import Inputs
from lantern_jax.devices.compilation import compile_ahead
from lantern_jax.devices.partition import Where, device_grid, everywhere, mesh_of, place, spans, where_on
from lantern_jax.engine import layouts, programs
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.program_cache import ProgramCache, ProgramKey
from lantern_jax.engine.programs import Parameters
from lantern_jax.kernels.ways import traced_on


class Placement:
    """Holds an engine's parameters where its programs want them. Arguments as for ``Engine``.

    Attributes:
        groups: how many groups of devices the parameters lie on; 0 before they are read.
    """

    def __init__(
        self,
        read: Callable[[Where], Parameters],
        read_drafter: Callable[[str, Parameters, Where], PyTree] | None,
        devices: Any,
    ):
        self.read, self.read_drafter = read, read_drafter
        self.devices = device_grid(devices)
        self.spans = spans(self.devices)
        self.chooses_layouts = layouts.are_chosen(self.devices[0, 0].platform)
        self._parameters: Parameters | None = None
        # Number of groups -> the layouts that its programs want, of the "target" and of drafters by name.
        self._formats: defaultdict[int, dict[str, PyTree]] = defaultdict(dict)
        self.groups = 0
        self._reading = threading.RLock()

    @property
    def parameters(self) -> Parameters:
        """The parameters where they lie, read when first asked for."""
        return self.on(self.groups or self.spread(1, None)[0])

    def on(self, groups: int) -> Parameters:
        """Returns the parameters on the first ``groups`` groups of devices, moved when that number changes."""
        with self._reading:
            if groups != self.groups:
                where = where_on(self.devices[:groups])
                parameters = self._parameters or self.read(where)
                parts = jax.block_until_ready(place(vars(parameters), where))
                self._parameters, self.groups = Parameters(**parts), groups
                del parameters, parts  # So that each old array is freed once its copy is in place.
                self._lay(self._formats[groups])
            return self._parameters

    def drafter(self, name: str) -> PyTree:
        """Returns a drafting's parameters on the devices of the others, read when first asked for."""
        with self._reading:
            parameters = self.parameters
            if name not in parameters.drafters:
                drafter = self.read_drafter(name, parameters, where_on(self.devices[: self.groups]))
                drafters = {**parameters.drafters, name: jax.block_until_ready(drafter)}
                self._parameters = replace(parameters, drafters=drafters)
                self._lay([name])
            return self._parameters.drafters[name]

    def inputs(self, job: Job, groups: int, size: int) -> Inputs:
        """Returns what a program of ``size`` sequences reads, on the devices, except conditioning and keys."""
        with self._reading:  # Else another thread may move the parameters between the two reads.
            parameters = self.on(groups)
            drafting = None if job.drafter is None else self.drafter(job.drafter)
        codebook = None if job.rule.is_strict else parameters.codebook
        guidance = programs.scales(job.guidance, size)
        return self.to_devices(
            Inputs(parameters.target, drafting, None, None, guidance, None, job.sampling, job.rule, codebook)
        )

    def lay_out(
        self, cache: ProgramCache, key: ProgramKey, drafter: str | None, sequences: Any, read: Callable[[], tuple]
    ) -> float:  # fmt: skip
        """Puts parameters into the layouts chosen for the program that advances a batch, where compilers choose any.

        Args:
            cache: receives that program, under its ``key``.
            drafter: the drafter whose parameters it reads besides the target's; None for none.
            read: returns what prefilling and advancing read; not held, or parameters would be in memory twice.

        Returns:
            the seconds spent compiling.
        """
        if not self.chooses_layouts or key in cache:
            return 0.0
        mesh = self.mesh(key.groups)
        begin, step = (
            partial(function, key.program, mesh) for function in (programs.start, programs.advance)
        )
        with self._reading:
            beginning, inputs = jax.tree.map(layouts.shape, read())
            beginning = beginning.replace(active=jax.ShapeDtypeStruct((key.size,), bool))
            keys, state = layouts.state_shapes(begin, beginning, sequences, mesh, self.devices[0, 0])
            known = self._formats[key.groups]
            laid = "target" in known, drafter in known
            arguments, options = layouts.choosing(inputs.replace(keys=keys), state, laid)
            program, seconds = cache.obtain(key, lambda: compile_ahead(step, *arguments, **options))
            formats = program.input_formats[0][0]
            chosen = {"target": formats.target_params, drafter: formats.drafting_params}
            new = [name for name in chosen if name is not None and name not in known]
            known |= {name: chosen[name] for name in new}
            self._lay(new)
        return seconds

    def _lay(self, names: Iterable[str]) -> None:
        """Puts these parameters, leaf by leaf, into the layouts chosen for this number of groups, if any."""
        parameters, known, placed = self._parameters, self._formats[self.groups], {}
        parts = {"target": parameters.target, **parameters.drafters}
        # From here on ``parts`` alone holds the arrays: each is freed once its copy is in place.
        others, self._parameters = replace(parameters, target=None, drafters={}), None
        groups, self.groups = self.groups, 0
        del parameters
        for name in names:
            if name in known and name in parts:
                parts[name] = layouts.put([parts.pop(name)], known[name], placed)
        target = parts.pop("target")
        self._parameters, self.groups = replace(others, target=target, drafters=parts), groups

    def state_lies(self, program: Callable | None) -> tuple | None:
        """Returns how a compiled program wants the (keys, state) that it advances; None leaves that to the compiler."""
        return (None, program.input_formats[0][1]) if self.chooses_layouts else None

    def tracing(self) -> AbstractContextManager[None]:
        """Returns a context in which programs are traced for these devices alone."""
        return traced_on(self.devices[0, 0].platform)

    def mesh(self, groups: int) -> Mesh | None:
        """Returns the mesh of the first ``groups`` groups of devices."""
        return mesh_of(self.devices[:groups])

    def to_devices(self, values: PyTree) -> PyTree:
        """Turns host values into what programs take: with several processes, arrays on all devices."""
        return everywhere(values, mesh_of(self.devices)) if self.spans else values

    def spread(self, count: int, most: int | None) -> tuple[int, int]:
        """Returns (groups, B) as ``programs.spread``; with several processes, each must take part in every program."""
        groups = len(self.devices)
        return programs.spread(max(count, groups) if self.spans else count, groups, most)

    def same_layout(self, *results: PyTree) -> tuple | None:
        """Returns the shardings or formats that keep results where and as they are; None if there is no choice."""
        if self.chooses_layouts:
            return (*jax.tree.map(layouts.same_layout, results), None)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, results)
        return None if self.devices.shape[1] == 1 else (*shardings, None)
