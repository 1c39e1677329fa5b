"""How much memory decoding takes, by the compiler's own account, and how many pictures at once a device holds.

Programs are compiled for shapes alone: no parameter is read and nothing runs, so a model may be larger than the
machine that asks. The account is that of this machine's kind of device.

Axes: n pictures decoded at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax.checkpoints.store import Checkpoint
from lantern_jax.decoding.program import Inputs
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.parameters import parameter_dtype
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.measuring.random_models import random_conditioning, random_model
from lantern_jax.models.quantization import is_quantized, quantized_shapes
from lantern_jax.models.vq import VQConfig, VQModel
from lantern_jax.settings import recipe

# Programs come in powers of two; more pictures at once than this are no faster anywhere.
MOST = 256


@dataclass(frozen=True)
class Shapes:
    """A model without its values.

    Attributes:
        config: of the target.
        drafters: configs of drafters by kind.
        dtype: of parameters and matrix products.
        defaults: of its knobs.
        codebook: shapes of the codebook for relaxed rules, or None.
        tokenizer: config of the VQ tokenizer, or None where nothing is drawn.
        quantized: whether the target's weights are in eight bits.
    """

    config: TargetConfig
    drafters: Mapping[str, Any]
    dtype: np.dtype
    defaults: Mapping[str, Any] = field(default_factory=dict)
    codebook: Any = None
    tokenizer: VQConfig | None = None
    quantized: bool = False

    def job(self, knobs: Mapping[str, Any]) -> Job:
        """How it decodes with these knobs; ValueError for knobs that it cannot be decoded with."""
        parts = self.config, self.drafters, self.defaults, self.codebook
        settings = recipe.settings_for(knobs, *parts, platform=jax.default_backend())
        return recipe.job(self.config, self.drafters, self.dtype, settings)


@dataclass(frozen=True)
class Memory:
    """Bytes of a device while n pictures are decoded and drawn.

    Attributes:
        pictures: n.
        parameters: of target, drafter, codebook and VQ tokenizer.
        state: caches and what else the loop keeps from round to round.
        working: what the largest of the programs needs besides.
    """

    pictures: int
    parameters: int
    state: int
    working: int

    @property
    def total(self) -> int:
        return self.parameters + self.state + self.working


def checkpoint_shapes(checkpoint: Checkpoint, dtype: Any) -> Shapes:
    """Those of a checkpoint, its text encoder left out: that is gone before decoding begins."""
    return Shapes(
        config=checkpoint.target_config,
        drafters={kind: config for kind, (config, _) in checkpoint.drafters.items()},
        dtype=parameter_dtype(dtype),
        defaults=checkpoint.defaults,
        codebook=_shapes(checkpoint.codebook),
        tokenizer=checkpoint.tokenizer_config,
        quantized=is_quantized(checkpoint.target_params),
    )


def size_shapes(size: str, dtype: Any) -> Shapes:
    """Those of a published size with an EAGLE drafter, nothing to draw with; ValueError for an unknown size."""
    model = random_model(size)
    return Shapes(
        model.config,
        {"eagle": model.drafter},
        parameter_dtype(dtype),
        codebook=model.codebook_shapes,
        quantized=model.quantized,
    )


def memory(shapes: Shapes, job: Job, pictures: int) -> Memory:
    """What decoding so many pictures at once takes; it compiles the programs that prefill, advance and draw."""
    inputs = _inputs(shapes, job, pictures)
    sequences = programs.Sequences(_rows(pictures, np.uint32), _rows(pictures, np.uint32))
    prefill = programs.beginning(inputs, inputs.conditioning, inputs.guidance)
    begin = partial(programs.start, job.program, None), (prefill, sequences)
    keys, state = jax.eval_shape(begin[0], *begin[1])
    running = inputs.replace(keys=keys, conditioning=None, active=None)
    step = partial(programs.advance, job.program, None), (running, state, np.int32(1))
    # The state is born in the first program, and handed on by the others.
    working = [_beside(*begin) - size_of(state), _beside(*step, donate="state")]
    tokenizer = 0
    if shapes.tokenizer is not None:
        tokenizer, drawing = _drawing(shapes.tokenizer, shapes.config.grid, pictures)
        working.append(drawing)
    # The head is the target's: a drafting adds its drafter alone.
    drafter = None if inputs.drafting_params is None else inputs.drafting_params["drafter"]
    parameters = size_of((inputs.target_params, drafter, inputs.codebook)) + tokenizer
    return Memory(pictures, parameters, size_of(state), max(working))


def largest(shapes: Shapes, job: Job, limit: int) -> Memory:
    """Of the batches that take at most ``limit`` bytes the largest, a power of two; of one picture if none does.

    Two small ones tell by how much a picture adds. The batch that this leads to is compiled itself, and others from
    there on, up or down.
    """
    needs = cache(lambda pictures: memory(shapes, job, pictures))
    few, more = needs(2), needs(4)
    room = (limit - few.total) / max(1, (more.total - few.total) / 2)
    pictures = min(MOST, 1 << int(math.log2(max(1, 2 + room))))
    while needs(pictures).total > limit and pictures > 1:
        pictures //= 2
    while pictures < MOST and needs(2 * pictures).total <= limit:
        pictures *= 2
    return needs(pictures)


def size_of(tree: PyTree) -> int:
    """Bytes of a tree's arrays, or of what stands in for them."""
    return sum(math.prod(leaf.shape) * _bytes(leaf.dtype) for leaf in jax.tree.leaves(tree))


def _bytes(dtype) -> int:
    # Keys have a dtype of their own, of two words.
    return 8 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.dtype(dtype).itemsize


def _inputs(shapes: Shapes, job: Job, pictures: int) -> Inputs:
    """Describes what programs for n pictures read, but for the keys."""
    family = family_of(shapes.config)
    target = _cast(family.shapes(shapes.config), shapes.dtype)
    target = quantized_shapes(target) if shapes.quantized else target
    drafting = None
    if job.drafter is not None:
        drafter = DRAFTERS[job.drafter].shapes(shapes.drafters[job.drafter])
        drafting = {"drafter": _cast(drafter, shapes.dtype), "head": jax.eval_shape(family.head, target)}
    conditioning = jax.eval_shape(partial(random_conditioning, shapes.config, pictures))
    guidance = None if job.guidance == 1 else _rows(pictures, np.float32)
    codebook, active = None if job.rule.is_strict else shapes.codebook, _rows(pictures, bool)
    return Inputs(target, drafting, conditioning, None, guidance, active, job.sampling, job.rule, codebook)


@cache
def _drawing(config: VQConfig, grid: int, pictures: int) -> tuple[int, int]:
    """Bytes of the VQ tokenizer's parameters, and those beside them that drawing so many pictures takes."""
    model, side = VQModel(config), grid * config.downsampling
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, 3)))
    codes = jax.ShapeDtypeStruct((pictures, grid * grid), jnp.int32)
    return size_of(params), _beside(partial(programs.draw, model, None), (params, codes))


def _beside(function, arguments: tuple, donate: str | None = None) -> int:
    """Returns the bytes that a program needs beside its arguments, with results that lie elsewhere."""
    used = jax.jit(function, donate_argnames=donate).lower(*arguments).compile().memory_analysis()
    results = used.output_size_in_bytes - used.alias_size_in_bytes
    return results + used.temp_size_in_bytes + used.generated_code_size_in_bytes


def _rows(count: int, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), dtype)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _cast(tree: PyTree, dtype: np.dtype) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), tree)
