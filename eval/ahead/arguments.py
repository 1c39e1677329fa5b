"""The arguments of an engine's programs, as shapes on absent devices.

The programs and their arguments are those of ``Engine`` for a batch of one size. ``Batch.placed`` is the one place
where an argument gets its sharding, and ``Batch.laid_out`` where it gets a layout.

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
from lantern_jax.devices.partition import Where, mesh_of, sharding_at, where_on
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.layouts import chosen, placed, same_layout
from lantern_jax.models.sizes import shape_of
from lantern_jax.models.vq import VQModel, vq_shapes

# In the order in which an engine needs them.
KINDS = ("start", "advance", "refill", "regroup", "draw")


@dataclass(frozen=True)
class Call:
    """A program before it is compiled.

    Attributes:
        function, arguments: what is traced, and the shapes that it is traced for.
        results: shardings or formats of the results, None where the compiler chooses.
        formats: the same for the arguments; None where they lie as described.
        state: the argument of that name if it is donated, else None.
    """

    function: Callable
    arguments: tuple
    results: Any = None
    state: Any = None
    formats: Any = None


@dataclass(frozen=True)
class Batch:
    """A batch of an engine on absent devices.

    Attributes:
        shapes: the model's shapes.
        job: how it is decoded.
        pictures: how many are asked for; the program has that many sequences or a few more.
        devices: stand-in devices, [data, model].
        formats: of inputs and state, as the compiler of ``advance`` chose them; None where it chooses none.
    """

    shapes: Shapes
    job: Job
    pictures: int
    devices: np.ndarray
    formats: Any = None

    @cached_property
    def spread(self) -> tuple[int, int]:
        """The number of groups of devices, and B."""
        groups = len(self.devices)
        return programs.spread(max(self.pictures, groups) if self.spans else self.pictures, groups, None)

    @property
    def spans(self) -> bool:
        """Whether the devices belong to several hosts."""
        return len({device.process_index for device in self.devices.flat}) > 1

    @property
    def used(self) -> np.ndarray:
        """The devices that take part, [groups, model]."""
        return self.devices[: self.spread[0]]

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of those devices."""
        return mesh_of(self.used)

    @cached_property
    def where(self) -> Where:
        """Where parameters lie."""
        return where_on(self.used)

    def placed(self, tree: PyTree, part: str) -> PyTree:
        """Assigns a sharding to the shapes of arrays that stay on the devices.

        Args:
            part: "target", "drafter", "tokenizer" or "codebook", by which parameters are split; "state" for what a
                program on one device left there.
        """

        def lie(path, leaf):
            sharding = sharding_at(self.where, (jax.tree_util.DictKey(part), *path), leaf.shape)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree_util.tree_map_with_path(lie, tree)

    def given(self, tree: PyTree) -> PyTree:
        """Assigns a sharding to the shapes of host values: all devices if several hosts share them, otherwise none."""
        if not self.spans:
            return tree
        whole = NamedSharding(mesh_of(self.devices), PartitionSpec())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), tree)

    @cached_property
    def inputs(self) -> Inputs:
        """What the programs read, except the keys."""
        inputs = batch_inputs(self.shapes, self.job, self.spread[1])
        target, drafting = inputs.target_params, inputs.drafting_params
        if self.formats is None:
            target = self.placed(target, "target")
            drafting = None if drafting is None else self.placed(drafting, "drafter")
        else:
            target = _lying(target, self.formats[0].target_params)
            drafting = _lying(drafting, self.formats[0].drafting_params)
        return inputs.replace(
            target_params=target,
            drafting_params=drafting,
            codebook=None if inputs.codebook is None else self.placed(inputs.codebook, "codebook"),
            conditioning=self.given(inputs.conditioning),
            guidance=self.given(inputs.guidance),
            active=self.given(inputs.active),
        )

    def start(self) -> Call:
        """Returns the program that prefills."""
        beginning = programs.beginning(self.inputs, self.inputs.conditioning, self.inputs.guidance)
        function = partial(programs.start, self.job.program, self.mesh)
        results = None if self.formats is None else (None, self.formats[1])
        return Call(function, (beginning, self._sequences(self.spread[1])), results)

    def born(self, started: Any = None) -> tuple[Any, Any]:
        """Returns the keys and the state that the first program leaves on the devices.

        Args:
            started: that program, compiled, which says how they are sharded; needed if there are several devices.
        """
        call = self.start()
        keys, state = jax.eval_shape(call.function, *call.arguments)
        if self.mesh is None:
            return self.placed(keys, "state"), self.placed(state, "state")
        return jax.tree.map(placed, (keys, state), started.output_shardings)

    def choose(self, keys: Any, state: Any) -> Call:
        """Returns ``advance`` with layouts left for its compiler to choose."""
        call = self.advance(keys, state)
        formats = chosen(*call.arguments[:2])
        return replace(call, results=(formats[1], None), formats=formats)

    def laid_out(self, state: Any, formats: Any) -> tuple["Batch", Any]:
        """Returns the batch and its state in the formats of a compiled ``advance``'s arguments."""
        return replace(self, formats=formats), _lying(state, formats[1])

    def advance(self, keys: Any, state: Any) -> Call:
        """Returns the program that runs rounds, given what ``born`` returns."""
        running = self.inputs.replace(keys=keys, conditioning=None, active=None)
        rounds = self.given(_rows((), np.int32))
        function = partial(programs.advance, self.job.program, self.mesh)
        return Call(function, (running, state, rounds), self._kept(state), state)

    def refill(self, keys: Any, state: Any) -> Call:
        """Returns the program that puts one new sequence into a slot of each group."""
        groups, size = self.spread
        new = batch_inputs(self.shapes, self.job, groups)
        inputs = self.inputs.replace(keys=keys, active=None)
        inputs = programs.beginning(inputs, self.given(new.conditioning), self.given(new.guidance))
        slots = self.given(_rows((groups,), np.int32))
        function = partial(programs.refill, self.job.program, self.mesh)
        return Call(function, (inputs, self._sequences(size), slots, state), self._kept(keys, state), state)

    @property
    def fewer(self) -> "Batch":
        """The batch with half of the sequences, whose layouts are not chosen yet."""
        return replace(self, pictures=max(1, self.spread[1] // 2), formats=None)

    def regroup(self, keys: Any, state: Any, lies: Any = None) -> Call | None:
        """Returns the program that continues with half of the sequences; None over several groups, which keep theirs.

        Args:
            lies: formats of the smaller state, as the compiler of ``advance`` chose them; None where it chooses none.
        """
        if len(self.devices) > 1:
            return None
        fewer = self.fewer.pictures
        one = batch_inputs(self.shapes, self.job, 1)
        inputs = self.inputs.replace(keys=keys, active=None)
        inputs = programs.beginning(inputs, self.given(one.conditioning), self.given(one.guidance))
        slots = self.given(_rows((fewer,), np.int32))
        function = partial(programs.regroup, self.job.program, self.mesh)
        results = self._kept(keys, state) if lies is None else (None, lies, None)
        return Call(function, (inputs, self._sequences(fewer), slots, state), results)

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

    def _kept(self, *results: Any) -> tuple | None:
        """Returns the shardings or formats of results, as ``Placement.same_layout`` does."""
        if self.formats is not None:
            return (*jax.tree.map(same_layout, results), None)
        if self.devices.shape[1] == 1:
            return None
        return (*jax.tree.map(lambda leaf: leaf.sharding, results), None)


def _lying(tree: PyTree, formats: PyTree) -> PyTree:
    """Assigns a program's argument formats to shapes; an argument that it does not read has none and stays as it is."""

    def lie(leaf, format):
        return leaf if format is None or format.layout is None else placed(leaf, format)

    return jax.tree.map(lie, tree, formats)


def _rows(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
