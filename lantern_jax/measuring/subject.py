"""What is measured: a model that can be decoded, whether its weights are a checkpoint's or random.

Axes: n prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from lantern_jax.devices.partition import device_grid
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.jobs import Job
from lantern_jax.engine.parameters import parameter_dtype
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.measuring.random_models import PIXELS_A_CELL, random_model
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.pipeline.prompting import prompt_encoder
from lantern_jax.settings import recipe
from lantern_jax.settings.settings import Settings

# What the demo draws, and other models of text as well.
PROMPTS = (
    "snowy mountains at dusk by a calm lake",
    "a foggy forest at dawn",
    "green hills at noon",
    "a desert at night under a clear sky",
    "clouds over the sea at sunset",
    "snowy forest with a river",
    "mountains and a lake at night",
    "dunes at dawn",
)


@dataclass(frozen=True)
class Subject:
    """A model that is measured.

    Attributes:
        name: a checkpoint's, or "random" and the size.
        config: of the target.
        drafters: configs of drafters by kind.
        dtype: of parameters and matrix products.
        engine: runs it.
        conditioning: leaves [n, ...], rows on the host; sequence i takes row i modulo n.
        pixels: a side of a picture.
        defaults: of its knobs.
        codebook: for relaxed rules: the array record or its shapes; None where there is none.
    """

    name: str
    config: TargetConfig
    drafters: Mapping[str, Any]
    dtype: np.dtype
    engine: Engine
    conditioning: PyTree
    pixels: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    codebook: Any = None

    def settings(self, knobs: Mapping[str, Any]) -> Settings:
        """The settings of these knobs; ValueError for knobs that this model cannot be decoded with."""
        parts = self.config, self.drafters, self.defaults, self.codebook
        return recipe.settings_for(knobs, *parts, platform=jax.default_backend())

    def job(self, settings: Settings, plain: bool = False) -> Job:
        """How a batch is decoded with these settings, or plainly with their sampling."""
        if plain:
            return recipe.plain_job(self.config, self.dtype, settings)
        return recipe.job(self.config, self.drafters, self.dtype, settings)

    def rows(self, first: int, count: int) -> PyTree:
        """Conditioning of the sequences ``first`` to ``first + count``."""
        numbers = np.arange(first, first + count)
        return jax.tree.map(lambda leaf: leaf[numbers % len(leaf)], self.conditioning)


def checkpoint_subject(name: str, pipeline: Pipeline, prompts: Sequence[str | int]) -> Subject:
    """A checkpoint to be measured on these prompts; ValueError for one that it does not take."""
    checkpoint = pipeline.checkpoint
    config, tokenizer = checkpoint.target_config, checkpoint.tokenizer_config
    return Subject(
        name=name,
        config=config,
        drafters={kind: drafter for kind, (drafter, _) in checkpoint.drafters.items()},
        dtype=pipeline.dtype,
        engine=pipeline.engine,
        conditioning=prompt_encoder(checkpoint).encode(prompts, pipeline.dtype),
        pixels=config.grid * (PIXELS_A_CELL if tokenizer is None else tokenizer.downsampling),
        defaults=checkpoint.defaults,
        codebook=checkpoint.codebook,
    )


def random_subject(
    size: str, dtype: Any = None, prompts: int = 64, mesh: str | Mesh | None = None
) -> Subject:
    """A model of a published size with random weights and as many prompts, on a mesh as ``pipeline.load`` takes it.

    Raises:
        ValueError: an unknown size, or a mesh that is not valid.
    """
    model, dtype = random_model(size), parameter_dtype(dtype)
    return Subject(
        name=f"random {size}",
        config=model.config,
        drafters={"eagle": model.drafter},
        dtype=dtype,
        engine=Engine(
            partial(model.read, dtype),
            devices=device_grid(mesh),
            read_drafter=partial(model.read_drafter, dtype),
        ),
        conditioning=model.conditioning(prompts),
        pixels=model.config.grid * PIXELS_A_CELL,
        codebook=model.codebook_shapes,
    )


def default_prompts(pipeline: Pipeline) -> list[str | int]:
    """Prompts that a checkpoint takes: class numbers, or landscapes in words."""
    checkpoint = pipeline.checkpoint
    classes = family_of(checkpoint.target_config).classes(checkpoint.target_config)
    if classes and checkpoint.vocabulary is None:
        return list(range(min(len(PROMPTS), classes)))
    return list(PROMPTS)
