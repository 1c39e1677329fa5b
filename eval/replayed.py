"""Models of published sizes with random weights whose windows accept as many tokens per pass as the demo's do."""

import dataclasses
from functools import partial

from lantern_jax.apps.measuring.accept_lengths import AcceptLengths
from lantern_jax.apps.measuring.forced import Forced
from lantern_jax.apps.measuring.random_models import TINY, random_model
from lantern_jax.checkpoints.checkpoint import Checkpoint
from lantern_jax.decoding.choices import DRAFTINGS
from lantern_jax.decoding.methods import AUTO
from lantern_jax.drafters.eagle import drafter_shapes
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.jobs import Job
from lantern_jax.families.registry import family_of
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.settings.auto import TOKENS
from lantern_jax.settings.recipe import Recipe
from lantern_jax.settings.settings import Settings

# Class-conditional ones: no text is encoded.
SIZES = (TINY, *(f"llamagen-{size}" for size in ("b", "l", "xl", "xxl", "3b")))
# A guess's chance of acceptance where it is unknown how many tokens the demo gets: a chain of EAGLE's, say.
_CHANCE, _GUIDANCE = 0.6, 2.0


class Replaying(Recipe):
    """A recipe whose rounds accept lengths drawn from a distribution: for each window, one with the demo's mean."""

    def job(self, settings: Settings, plain: bool = False) -> Job:
        """Returns the job of these settings, with accepted lengths replayed."""
        job = super().job(settings, plain)
        if plain or settings.is_plain:
            return job
        depth = job.program.drafting.max_depth
        drafting, nodes = settings.drafting, settings.tree.num_nodes - 1
        window = f"{DRAFTINGS.name_of(drafting)}:nodes={nodes}"
        if hasattr(drafting, "refine"):
            window += f",refine={drafting.refine}"
        mean = TOKENS.get(window, sum(_CHANCE**level for level in range(depth + 1)))
        coupling = Forced(job.program.coupling, AcceptLengths(mean).over(depth))
        return dataclasses.replace(job, program=job.program._replace(coupling=coupling))


def replaying(size: str) -> Pipeline:
    """Opens a model of a size."""
    model = random_model(size)
    shapes = family_of(model.config).shapes(model.config)
    eagle = model.drafters["eagle"]
    drafters = {"eagle": (eagle, drafter_shapes(eagle))}
    pipeline = Pipeline(
        Checkpoint(size, model.config, shapes, drafters=drafters, defaults={"guidance": _GUIDANCE}),
        tuned=AUTO,
    )
    pipeline.engine = Engine(
        partial(model.read, pipeline.dtype),
        devices=pipeline.engine.devices,
        read_drafter=partial(model.read_drafter, pipeline.dtype),
    )
    pipeline.recipe = Replaying(**vars(pipeline.recipe))
    return pipeline
