"""How many pictures fit together on a device: parameters and the loop's state by their shapes, the rest by a formula.

Nothing is compiled, read or run. ``python -m eval.ahead`` asks the devices' own compilers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from rich.table import Table

from lantern_jax.apps.measuring.data_sheets import GPU, TPU, Device
from lantern_jax.apps.measuring.shapes import Shapes, batch_inputs, size_of
from lantern_jax.apps.terminal import console
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Job
from lantern_jax.models.vq import vq_shapes

# Programs come in powers of two; larger batches than this are no faster anywhere.
MOST = 256
# The variable that sets the share of a GPU's memory that JAX takes, and the share it takes otherwise.
_FRACTION, _GPU_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"
# Arrays of float32 as large as a pass's distributions that live together: logits, log-probabilities, noise, their sum.
_DISTRIBUTIONS = 4
# Bytes per pixel of drawing, as XLA compiles LlamaGen's tokenizer.
_DRAWING = 1600
# A TPU pads the last axis of large arrays to a multiple of this: caches of heads of 64 take twice their bytes.
_LANES = 128


@dataclass(frozen=True)
class Need:
    """The bytes that each device needs while n pictures are decoded and drawn.

    Attributes:
        pictures: n.
        parameters: those of target, drafter, codebook and VQ tokenizer.
        state: caches, and what else the loop keeps from round to round.
        working: an estimate of what the largest program needs besides.
    """

    pictures: int
    parameters: int
    state: int
    working: int

    @property
    def total(self) -> int:
        return self.parameters + self.state + self.working


def limit_of(device: Device) -> int:
    """Returns the bytes of a device that programs get: on a GPU, the share that JAX takes."""
    share = float(os.environ.get(_FRACTION, _GPU_SHARE)) if device.platform == GPU else 1
    return int(device.memory * share)


def need(
    shapes: Shapes, job: Job, nodes: int, pictures: int, data: int = 1, model: int = 1, platform: str = GPU
) -> Need:
    """Returns what a batch needs on each of ``data`` x ``model`` devices, over which it is split evenly; a pass has
    ``nodes`` nodes."""
    each = -(-pictures // data)
    inputs = batch_inputs(shapes, job, each)
    beginning = programs.beginning(inputs, inputs.conditioning, inputs.guidance)
    sequences = programs.sequence_ids(each, *np.zeros((2, 1)))
    state = jax.eval_shape(partial(programs.start, job.program, None), beginning, sequences)
    # The head that a drafter is given is the target's.
    drafting = {name: part for name, part in (inputs.drafting_params or {}).items() if name != "head"}
    tokenizer = 0 if shapes.tokenizer is None else size_of(vq_shapes(shapes.tokenizer))
    guided = _DISTRIBUTIONS + (1 if inputs.guidance is None else 2)
    working = max(
        4 * guided * each * nodes * job.program.target.vocab_size, programs.PIXELS_PER_PASS * _DRAWING
    )
    split = size_of((inputs.target_params, drafting)) // model
    own = size_of(_padded(state) if platform == TPU else state) // model
    return Need(pictures, split + size_of(inputs.codebook) + tokenizer, own, working)


def largest(
    shapes: Shapes, options: Mapping[str, Any], limit: int, data: int = 1, model: int = 1, platform: str = GPU
) -> Need:
    """Returns the need of the largest batch, a power of two for each group of devices, that fits in ``limit`` bytes; if
    even the smallest does not fit, its need."""
    what = shapes, shapes.job(options), shapes.recipe.settings(options).tree.num_nodes
    found = need(*what, data, data, model, platform)
    while found.pictures < MOST * data:
        twice = need(*what, 2 * found.pictures, data, model, platform)
        if twice.total > limit:
            break
        found = twice
    return found


def _padded(state: PyTree) -> PyTree:
    """Returns the shapes of caches, which have four axes or more, as a TPU lays them out."""

    def pad(leaf):
        if len(leaf.shape) < 4:
            return leaf
        return jax.ShapeDtypeStruct((*leaf.shape[:-1], -(-leaf.shape[-1] // _LANES) * _LANES), leaf.dtype)

    return jax.tree.map(pad, state)


def fit_table(found: Mapping[str, Need], limit: float, title: str) -> Table:
    """Returns a table of the largest batches that a device of ``limit`` bytes can decode, and what they need."""
    heads = ("method", "pictures together", "GB in all", "parameters", "caches per picture", "working memory")

    def cells(name: str, need: Need) -> tuple[str, ...]:
        pictures = need.pictures if need.total <= limit else 0
        sizes = (need.total, need.parameters, need.state / need.pictures, need.working)
        return name, str(pictures), *(f"{size / 1e9:.3g}" for size in sizes)

    caption = "By shapes; working memory is an estimate. A method with 0 needs more even for one picture."
    rows = (cells(name, need) for name, need in found.items())
    return console.table(heads, rows, title=title, caption=caption)
