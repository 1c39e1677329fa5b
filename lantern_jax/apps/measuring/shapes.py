"""Models and batches without their values: shapes to compile for, of models that may be larger than the machine.

Axes: n pictures decoded together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lantern_jax.apps.measuring.random_models import random_model
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.program import Inputs
from lantern_jax.devices.platform import parameter_dtype
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine.jobs import Job
from lantern_jax.families.registry import family_of
from lantern_jax.models.quantization import is_quantized, quantized_shapes
from lantern_jax.models.vq import VQConfig
from lantern_jax.settings.recipe import Recipe


@dataclass(frozen=True)
class Shapes:
    """A model without its values.

    Attributes:
        recipe: what it decodes with, with shapes for the codebook.
        tokenizer: config of the VQ tokenizer, or None where nothing is drawn.
        quantized: whether the target's weights are in eight bits.
    """

    recipe: Recipe
    tokenizer: VQConfig | None = None
    quantized: bool = False

    def job(self, options: Mapping[str, Any]) -> Job:
        """Returns the job that decodes it with these options; LanternError for options that do not fit it."""
        return self.recipe.job(self.recipe.settings(options))


def checkpoint_shapes(checkpoint: Checkpoint, dtype: Any) -> Shapes:
    """Returns the shapes of a checkpoint, without its text encoder, which is freed before decoding."""
    recipe = Recipe.of(checkpoint, parameter_dtype(dtype))
    return Shapes(
        replace(recipe, codebook=_shapes(recipe.codebook)),
        checkpoint.tokenizer_config,
        is_quantized(checkpoint.target_params),
    )


def size_shapes(size: str, dtype: Any) -> Shapes:
    """Returns the shapes of a published size with its usual drafters, and its family's VQ tokenizer if that has the
    same number of codes."""
    model = random_model(size)
    recipe = model.recipe(parameter_dtype(dtype))
    tokenizer = family_of(recipe.config).tokenizer()
    if tokenizer is not None and tokenizer.codebook_size != recipe.config.num_codes:
        tokenizer = None
    return Shapes(recipe, tokenizer, model.quantized)


def size_of(tree: PyTree) -> int:
    """Returns the bytes of a tree's arrays, or of the shapes in their place."""
    return sum(math.prod(leaf.shape) * _bytes(leaf.dtype) for leaf in jax.tree.leaves(tree))


def _bytes(dtype) -> int:
    # Keys have a dtype of their own, two words long.
    return 8 if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.dtype(dtype).itemsize


def batch_inputs(shapes: Shapes, job: Job, pictures: int) -> Inputs:
    """Describes what programs for n pictures read, except the keys."""
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


def _rows(count: int, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), dtype)


def _shapes(tree: PyTree, dtype: np.dtype | None = None) -> PyTree:
    """Returns shapes in place of arrays, in one dtype or in their own."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype), tree)
