"""Where parameters and batches lie: on one group of devices or on all, each with a copy of the model or a share of it.

Axes: n sequences asked for, B sequences of a program (with padding).
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from lantern_jax.devices import hosts
from lantern_jax.devices.partition import Where, device_grid, everywhere, mesh_of, place, where_on
from lantern_jax.engine import programs
from lantern_jax.engine.programs import Parameters


class Placement:
    """Holds the parameters of an engine where its programs want them. Arguments as of ``Engine``."""

    def __init__(
        self,
        read: Callable[[Where], Parameters],
        read_drafter: Callable[[str, Parameters, Where], PyTree] | None,
        devices: Any,
    ):
        self.read, self.read_drafter = read, read_drafter
        self.devices = device_grid(devices)
        self.spans = hosts.spans(self.devices)
        self._parameters: Parameters | None = None
        self._groups = 0
        self._reading = threading.RLock()

    @property
    def parameters(self) -> Parameters:
        """The parameters where they lie, read when first asked for."""
        return self.on(self._groups or self.spread(1, None)[0])

    def on(self, groups: int) -> Parameters:
        """Returns the parameters on the first ``groups`` groups of devices, moved when that number changes."""
        with self._reading:
            if groups != self._groups:
                where = where_on(self.devices[:groups])
                parameters = self._parameters or self.read(where)
                parts = jax.block_until_ready(place(vars(parameters), where))
                self._parameters, self._groups = Parameters(**parts), groups
            return self._parameters

    def drafter(self, name: str) -> PyTree:
        """Returns the parameters of a drafting where the others lie, read when first asked for."""
        with self._reading:
            parameters = self.parameters
            if name not in parameters.drafters:
                drafter = self.read_drafter(name, parameters, where_on(self.devices[: self._groups]))
                drafters = {**parameters.drafters, name: jax.block_until_ready(drafter)}
                self._parameters = replace(parameters, drafters=drafters)
            return self._parameters.drafters[name]

    def mesh(self, groups: int) -> Mesh | None:
        """Returns the mesh of the first ``groups`` groups of devices."""
        return mesh_of(self.devices[:groups])

    def given(self, values: PyTree) -> PyTree:
        """Turns values of the host into what programs take: over several processes, arrays on all devices."""
        return everywhere(values, mesh_of(self.devices)) if self.spans else values

    def spread(self, count: int, most: int | None) -> tuple[int, int]:
        """Returns (groups, B) as ``programs.spread``; each of several processes must have a part in every program."""
        groups = len(self.devices)
        return programs.spread(max(count, groups) if self.spans else count, groups, most)

    def kept(self, *results: PyTree) -> tuple | None:
        """Returns shardings that keep results where they are; None without a model axis, where there is no choice."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, results)
        return None if self.devices.shape[1] == 1 else (*shardings, None)
