"""How much memory decoding takes, by the compiler's own account, and how many pictures a device can decode together.

Programs are compiled for shapes alone: no parameter is read and nothing runs, so a model may be larger than the
machine that asks. The account is that of this machine's kind of device.

Axes: n pictures decoded together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.program import Inputs
from lantern_jax.engine import programs
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.parameters import parameter_dtype
from lantern_jax.families.drafters import DRAFTERS
from lantern_jax.families.registry import family_of
from lantern_jax.measuring.random_models import random_model
from lantern_jax.models.quantization import is_quantized, quantized_shapes
from lantern_jax.models.vq import VQConfig, VQModel
from lantern_jax.settings.recipe import Recipe

# Programs come in powers of two; larger batches than this are no faster anywhere.
MOST = 256


@dataclass(frozen=True)
class Shapes:
    """A model without its values.

    Attributes:
        recipe: what it decodes with, shapes for the codebook.
        tokenizer: config of the VQ tokenizer, or None where nothing is drawn.
        quantized: whether the target's weights are in eight bits.
    """

    recipe: Recipe
    tokenizer: VQConfig | None = None
    quantized: bool = False

    def job(self, knobs: Mapping[str, Any]) -> Job:
        """Returns how it decodes with these knobs; LanternError for knobs that it cannot be decoded with."""
        return self.recipe.job(self.recipe.settings(knobs))


@dataclass(frozen=True)
class Need:
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
    """Returns the shapes of a checkpoint, without its text encoder, which is freed before decoding."""
    recipe = Recipe.of(checkpoint, parameter_dtype(dtype))
    return Shapes(
        replace(recipe, codebook=_shapes(recipe.codebook)),
        checkpoint.tokenizer_config,
        is_quantized(checkpoint.target_params),
    )


def size_shapes(size: str, dtype: Any) -> Shapes:
    """Returns the shapes of a published size with an EAGLE drafter, and its family's VQ tokenizer where that has the
    same number of codes."""
    model = random_model(size)
    recipe = model.recipe(parameter_dtype(dtype))
    tokenizer = family_of(recipe.config).tokenizer()
    if tokenizer is not None and tokenizer.codebook_size != recipe.config.num_codes:
        tokenizer = None
    return Shapes(recipe, tokenizer, model.quantized)


def memory(shapes: Shapes, job: Job, pictures: int) -> Need:
    """Returns what ``pictures`` pictures decoded together take; compiles what prefills, advances and draws."""
    inputs = batch_inputs(shapes, job, pictures)
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
        tokenizer, drawing = _drawing(shapes.tokenizer, shapes.recipe.config.grid, pictures)
        working.append(drawing)
    # The head is the target's: a drafting adds its drafter alone.
    drafter = None if inputs.drafting_params is None else inputs.drafting_params["drafter"]
    parameters = size_of((inputs.target_params, drafter, inputs.codebook)) + tokenizer
    return Need(pictures, parameters, size_of(state), max(working))


def largest(shapes: Shapes, job: Job, limit: int) -> Need:
    """Returns the need of the largest power-of-two batch that fits in ``limit`` bytes (of one picture if none does).

    Two small batches tell how much a picture adds. The batch that this predicts is compiled, then its neighbours, up or
    down.
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
    """Returns the bytes of a tree's arrays, or of the shapes in their place."""
    return sum(math.prod(leaf.shape) * _bytes(leaf.dtype) for leaf in jax.tree.leaves(tree))


def _bytes(dtype) -> int:
    # Keys have a dtype of their own, of two words.
    return 8 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.dtype(dtype).itemsize


def batch_inputs(shapes: Shapes, job: Job, pictures: int) -> Inputs:
    """Describes what programs for n pictures read, but for the keys."""
    family = family_of(shapes.recipe.config)
    target = _shapes(family.shapes(shapes.recipe.config), shapes.recipe.dtype)
    target = quantized_shapes(target) if shapes.quantized else target
    drafting = None
    if job.drafter is not None:
        drafter = DRAFTERS[job.drafter].shapes(shapes.recipe.drafters[job.drafter])
        drafting = {
            "drafter": _shapes(drafter, shapes.recipe.dtype),
            "head": jax.eval_shape(family.head, target),
        }
    conditioning = jax.eval_shape(partial(family.random_conditioning, shapes.recipe.config, pictures))
    guidance = None if job.guidance == 1 else _rows(pictures, np.float32)
    codebook, active = None if job.rule.is_strict else shapes.recipe.codebook, _rows(pictures, bool)
    return Inputs(target, drafting, conditioning, None, guidance, active, job.sampling, job.rule, codebook)


@cache
def _drawing(config: VQConfig, grid: int, pictures: int) -> tuple[int, int]:
    """Returns the bytes of the VQ tokenizer's parameters, and the bytes beside them that drawing takes."""
    params = tokenizer_shapes(config, grid)
    codes = jax.ShapeDtypeStruct((pictures, grid * grid), jnp.int32)
    return size_of(params), _beside(partial(programs.draw, VQModel(config), None), (params, codes))


def tokenizer_shapes(config: VQConfig, grid: int) -> PyTree:
    """Describes the parameters of a VQ tokenizer for pictures of ``grid`` x ``grid`` codes."""
    side = grid * config.downsampling
    return jax.eval_shape(VQModel(config).init, jax.random.key(0), jnp.zeros((1, side, side, 3)))


def _beside(function, arguments: tuple, donate: str | None = None) -> int:
    """Returns the bytes that a program needs beside its arguments, with results that lie elsewhere."""
    used = jax.jit(function, donate_argnames=donate).lower(*arguments).compile().memory_analysis()
    results = used.output_size_in_bytes - used.alias_size_in_bytes
    return results + used.temp_size_in_bytes + used.generated_code_size_in_bytes


def _rows(count: int, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), dtype)


def _shapes(tree: PyTree, dtype: np.dtype | None = None) -> PyTree:
    """Returns shapes in place of arrays, of one dtype or of their own."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype), tree)
