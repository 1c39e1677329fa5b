"""Opening the checkpoint of a picture set, and planning the set."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lantern_jax.apps.sets.set_plan import SetPlan
from lantern_jax.decoding.fields import MOST_PICTURES
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

if TYPE_CHECKING:
    from lantern_jax.pipeline.pipeline import Pipeline

# Pictures per shard by default.
SHARD_SIZE = 256


@dataclass(frozen=True)
class OpenedSet:
    """Everything that makes a set: the model and the plan.

    Attributes:
        options: those requested, with the method that was found; ``plan.settings`` were resolved from them.
        note: a line for people on tuned settings, or "".
    """

    pipeline: "Pipeline"
    plan: SetPlan
    options: Mapping[str, Any]
    note: str = ""


def open_set(
    model: str,
    prompts: tuple[str, ...],
    options: Mapping[str, Any] | None = None,
    *,
    num: int = 1,
    seed: int = 0,
    negatives: tuple[str, ...] = (),
    shard_size: int = SHARD_SIZE,
    size: str | None = None,
    dtype: str | None = None,
    mesh: str | None = None,
    tuned: str | None = "auto",
    strict_words: bool = False,
) -> OpenedSet:
    """Opens a checkpoint and plans a set of its pictures; parameters are read later.

    Args:
        model: "demo" or a checkpoint's directory.
        prompts, num, seed, negatives, shard_size, size: as in ``SetPlan``.
        options: of decoding by name.
        dtype, mesh, tuned, strict_words: as ``pipeline.load`` takes them.

    Raises:
        LanternError: no such checkpoint, one that cannot draw, or options or a prompt (named) that do not fit it.
    """
    from lantern_jax.checkpoints.store import model_directory
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.pipeline.pipeline import load
    from lantern_jax.tensors.checksums import checkpoint_digest

    keep_compiled_programs()
    pipeline, options = load(model, dtype, tuned, mesh, strict_words, size), options or {}
    pipeline.check_draws()
    found = pipeline.tuning(len(prompts) * num, **options)
    options = {**options, **found.options}
    plan = SetPlan(
        prompts, num, seed, checkpoint_digest(model_directory(model)), pipeline.dtype.name,
        pipeline.settings(options).to_json(), shard_size, negatives, pipeline.checkpoint.size,
    )  # fmt: skip
    _check_prompts(plan, pipeline)
    return OpenedSet(pipeline, plan, options, found.note)


def _check_prompts(plan: SetPlan, pipeline: "Pipeline") -> None:
    """Raises LanternError for the first prompt that the model does not take, alone or with its negative one."""

    def check(start: int, count: int) -> None:
        here = slice(start, start + count)
        negatives = plan.negatives if len(plan.negatives) < 2 else plan.negatives[here]
        pipeline.check(plan.prompts[here], negative_prompt=negatives or None)

    # A set may have more prompts than one call takes.
    for start in range(0, len(plan.prompts), MOST_PICTURES):
        try:
            check(start, MOST_PICTURES)
        except LanternError:
            for number, prompt in enumerate(plan.prompts[start : start + MOST_PICTURES], start):
                try:
                    check(number, 1)
                except LanternError as error:
                    shown = errors.quoted(prompt)
                    raise LanternError(f"prompt {number + 1} of the set, {shown}: {error}") from None
            raise
