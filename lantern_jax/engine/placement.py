"""Where parameters and batches lie: on one device group or all, each device with a copy of the model or a share of it.

Axes: n sequences asked for, B sequences of a program (with padding).
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PyTree

from lantern_jax.decoding.program import Inputs
from lantern_jax.devices.partition import (
    DATA,
    Where,
    described,
    device_grid,
    everywhere,
    is_tiled,
    mesh_of,
    place,
    places_of,
    spans,
    where_on,
)
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Job
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
        # The compiler decides how the state of a split model lies.
        self.has_layouts = is_tiled(self.devices[0, 0]) and self.devices.shape[1] == 1
        self._parameters: Parameters | None = None
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
            return self._parameters

    def drafter(self, name: str) -> PyTree:
        """Returns a drafting's parameters on the devices of the others, read when first asked for."""
        with self._reading:
            parameters = self.parameters
            if name not in parameters.drafters:
                drafter = self.read_drafter(name, parameters, where_on(self.devices[: self.groups]))
                drafters = {**parameters.drafters, name: jax.block_until_ready(drafter)}
                self._parameters = replace(parameters, drafters=drafters)
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

    def state_shapes(self, state: PyTree, groups: int) -> PyTree:
        """Returns the shapes of a new state, of a model that is not split, with their places."""
        mesh, one = self.mesh(groups), SingleDeviceSharding(self.devices[0, 0])
        return described(state, one if mesh is None else NamedSharding(mesh, PartitionSpec(DATA)))

    def same_places(self, *results: PyTree) -> tuple | None:
        """Returns what keeps results where and as they are; None where there is no choice."""
        if self.devices.shape[1] > 1:
            return (*jax.tree.map(lambda leaf: leaf.sharding, results), None)
        return (*places_of(results), None) if self.has_layouts else None
