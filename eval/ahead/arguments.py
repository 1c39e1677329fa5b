"""The arguments of an engine's programs, as shapes on absent devices.

The programs and their arguments are those of ``Engine`` for a batch of one size. ``Batch.placed`` is the one place
where an argument gets its sharding and layout.

Axes: B sequences of a program, F new sequences of a refill.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from lantern_jax.apps.measuring.shapes import Shapes, batch_inputs
from lantern_jax.decoding.program import Inputs
from lantern_jax.devices.partition import Where, described, mesh_of, places_of, where_on
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.placement import Placement
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.vq import VQModel, vq_shapes

# In the order in which an engine needs them.
KINDS = ("start", "advance", "refill", "regroup", "draw")


@dataclass(frozen=True)
class Call:
    """A program before it is compiled.

    Attributes:
        function, arguments: what is traced, and the shapes that it is traced for.
        results: shardings of the results, None where the compiler chooses.
        state: the argument of that name if it is donated, else None.
    """

    function: Callable
    arguments: tuple
    results: Any = None
    state: Any = None


@dataclass(frozen=True)
class Batch:
    """A batch of an engine on absent devices.

    Attributes:
        shapes: the model's shapes.
        job: how it is decoded.
        pictures: how many are asked for; the program has that many sequences or a few more.
        devices: stand-in devices, [data, model].
    """

    shapes: Shapes
    job: Job
    pictures: int
    devices: np.ndarray

    @cached_property
    def placement(self) -> Placement:
        """Where an engine's parameters and batches lie on these devices; it reads none."""
        return Placement(None, None, self.devices)

    @property
    def spread(self) -> tuple[int, int]:
        """The number of groups of devices, and B."""
        return self.placement.spread(self.pictures, None)

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of the devices that take part."""
        return self.placement.mesh(self.spread[0])

    @cached_property
    def where(self) -> Where:
        """Where parameters lie."""
        return where_on(self.devices[: self.spread[0]])

    def placed(self, tree: PyTree, part: str) -> PyTree:
        """Assigns a place and a layout to the shapes of arrays that stay on the devices.

        Args:
            part: "target", "drafter", "tokenizer" or "codebook", by which parameters are split.
        """
        return described({part: tree}, self.where)[part]

    def given(self, tree: PyTree) -> PyTree:
        """Assigns a sharding to the shapes of host values: all devices if several hosts share them, otherwise none."""
        if not self.placement.spans:
            return tree
        whole = NamedSharding(mesh_of(self.devices), PartitionSpec())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), tree)

    @cached_property
    def inputs(self) -> Inputs:
        """What the programs read, except the keys."""
        inputs = batch_inputs(self.shapes, self.job, self.spread[1])
        target, drafting = inputs.target_params, inputs.drafting_params
        return inputs.replace(
            target_params=self.placed(target, "target"),
            drafting_params=None if drafting is None else self.placed(drafting, "drafter"),
            codebook=None if inputs.codebook is None else self.placed(inputs.codebook, "codebook"),
            conditioning=self.given(inputs.conditioning),
            guidance=self.given(inputs.guidance),
            active=self.given(inputs.active),
        )

    def start(self) -> Call:
        """Returns the program that prefills."""
        beginning = programs.beginning(self.inputs, self.inputs.conditioning, self.inputs.guidance)
        function = partial(programs.start, self.job.program, self.mesh)
        call = Call(function, (beginning, self._sequences(self.spread[1])))
        return replace(call, results=places_of(self._state(call))) if self.placement.has_layouts else call

    def _state(self, start: Call) -> tuple[Any, Any]:
        made = jax.eval_shape(start.function, *start.arguments)
        return self.placement.state_shapes(made, self.spread[0])

    def state_shapes(self, started: Any = None) -> tuple[Any, Any]:
        """Returns the keys and the state that the first program leaves on the devices.

        Args:
            started: that program, compiled, which says how they are sharded; needed if a model is split.
        """
        call = self.start()
        if self.devices.shape[1] == 1:
            return self._state(call)
        made = jax.eval_shape(call.function, *call.arguments)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            made, started.output_shardings,
        )  # fmt: skip

    def advance(self, keys: Any, state: Any) -> Call:
        """Returns the program that runs rounds, given what ``state_shapes`` returns."""
        running = self.inputs.replace(keys=keys, conditioning=None, active=None)
        rounds = self.given(_rows((), np.int32))
        function = partial(programs.advance, self.job.program, self.mesh)
        return Call(function, (running, state, rounds), self.placement.same_places(state), state)

    def refill(self, keys: Any, state: Any) -> Call:
        """Returns the program that puts one new sequence into a slot of each group."""
        groups, size = self.spread
        new = batch_inputs(self.shapes, self.job, groups)
        inputs = self.inputs.replace(keys=keys, active=None)
        inputs = programs.beginning(inputs, self.given(new.conditioning), self.given(new.guidance))
        slots = self.given(_rows((groups,), np.int32))
        function = partial(programs.refill, self.job.program, self.mesh)
        return Call(
            function,
            (inputs, self._sequences(size), slots, state),
            self.placement.same_places(keys, state),
            state,
        )

    def regroup(self, keys: Any, state: Any) -> Call | None:
        """Returns the program that continues with half of the sequences; None over several groups: they keep theirs."""
        if len(self.devices) > 1:
            return None
        fewer = max(1, self.spread[1] // 2)
        one = batch_inputs(self.shapes, self.job, 1)
        inputs = self.inputs.replace(keys=keys, active=None)
        inputs = programs.beginning(inputs, self.given(one.conditioning), self.given(one.guidance))
        slots = self.given(_rows((fewer,), np.int32))
        function = partial(programs.regroup, self.job.program, self.mesh)
        return Call(
            function, (inputs, self._sequences(fewer), slots, state), self.placement.same_places(keys, state)
        )

    def draw(self) -> Call | None:
        """Returns the program that draws as many pictures as go into a pass; None for a model without a tokenizer."""
        config = self.shapes.tokenizer
        if config is None:
            return None
        batch = replace(self, pictures=self.drawn_together)
        groups, size = batch.spread
        size += -size % (groups * self.devices.shape[1])
        params = batch.placed(vq_shapes(config), "tokenizer")
        rows, columns = shape_of(self.shapes.recipe.config)
        codes = batch.given(_rows((size, rows * columns), np.int32))
        return Call(partial(programs.draw, VQModel(config, (rows, columns)), batch.mesh), (params, codes))

    @property
    def drawn_together(self) -> int:
        """The number of pictures drawn per pass; all for a model without a tokenizer."""
        config = self.shapes.tokenizer
        if config is None:
            return self.pictures
        rows, columns = shape_of(self.shapes.recipe.config)
        pixels = rows * columns * config.downsampling**2
        return min(self.pictures, programs.pictures_per_pass(pixels, self.devices.size))

    def _sequences(self, count: int) -> Any:
        return self.given(_rows((2, count), np.uint32))


def _rows(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
