"""Requests for picture sets; opening the checkpoint that a request names turns it into a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lantern_jax.apps.sets.plan import SetPlan, check_negatives, check_size, is_set, negatives_of, read_plan
from lantern_jax.decoding.fields import MOST_PICTURES
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

if TYPE_CHECKING:
    from lantern_jax.apps.metrics.features import FeatureReader
    from lantern_jax.pipeline.pipeline import Pipeline

# Pictures per shard by default.
SHARD_SIZE = 256


@dataclass(frozen=True)
class SetRequest:
    """A user's request for a set.

    Attributes:
        model: "demo" or a checkpoint's directory.
        prompts, num, seed, format, shard_size, tar, negatives, size: as in ``SetPlan``.
        options: of decoding by name, None for one left open.
        dtype: of parameters and products; None for the device's own.
        mesh: how devices share the work, as ``pipeline.load`` takes it; None: all devices, each with a whole model.
        sums: whether to keep sums of the demo's features; None: only for the demo.
        strict_words, tuned: as ``pipeline.load`` takes them.

    Raises:
        LanternError: as ``check_size``.
    """

    model: str
    prompts: tuple[str, ...]
    options: Mapping[str, Any]
    num: int = 1
    seed: int = 0
    format: str = "png"
    shard_size: int = SHARD_SIZE
    dtype: str | None = None
    mesh: str | None = None
    sums: bool | None = None
    strict_words: bool = False
    negatives: tuple[str, ...] = ()
    tar: bool = False
    size: str | None = None
    tuned: str | None = "auto"

    def __post_init__(self):
        check_negatives(self.negatives, len(self.prompts))
        check_size(len(self.prompts), self.num, self.shard_size)


@dataclass(frozen=True)
class OpenedSet:
    """Everything that makes a set: the models, the plan, and the reader of features for its sums.

    Attributes:
        options: those requested, with the method that was found; ``plan.settings`` were resolved from them.
        notes: lines for people on tuned settings.
    """

    pipeline: "Pipeline"
    plan: SetPlan
    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    reader: "FeatureReader | None" = None


def open_set(request: SetRequest, directory: Path | None = None) -> OpenedSet:
    """Opens the checkpoint and plans the set; parameters are read later.

    Args:
        directory: the set's; if it was begun there, it continues with the guesses that were chosen for it then.

    Raises:
        LanternError: no such checkpoint, one that cannot draw, or options or a prompt (named) that do not fit it.
    """
    from lantern_jax.checkpoints.store import model_directory
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.pipeline.pipeline import load
    from lantern_jax.tensors.checksums import checkpoint_digest

    keep_compiled_programs()
    pipeline = load(
        request.model, request.dtype, request.tuned, request.mesh, request.strict_words, request.size
    )
    pipeline.settings(request.options)
    _check_prompts(request, pipeline)
    pipeline.check_draws()
    reader = _reader(request)
    count = len(request.prompts) * request.num
    tuned = pipeline.tuning(count, **request.options)
    options, note = {**request.options, **tuned.options}, tuned.note
    if tuned.rows and directory is not None and is_set(directory):
        # Another platform may choose other guesses, which make the same pictures.
        begun = read_plan(directory).settings
        for row in tuned.rows:
            if pipeline.settings({**options, "method": row.method}).to_json() == begun:
                options["method"], note = row.method, f"auto: {row.method}, as the set was begun"
    settings = pipeline.settings(options)
    plan = SetPlan(
        prompts=request.prompts,
        num=request.num,
        seed=request.seed,
        model=checkpoint_digest(model_directory(request.model)),
        dtype=pipeline.dtype.name,
        settings=settings.to_json(),
        format=request.format,
        shard_size=request.shard_size,
        sums=None if reader is None else reader.name,
        negatives=request.negatives,
        tar=request.tar,
        size=pipeline.checkpoint.size,
    )
    return OpenedSet(pipeline, plan, options, tuple(filter(None, [note])), reader)


def _check_prompts(request: SetRequest, pipeline: "Pipeline") -> None:
    """Raises LanternError for the first prompt that the model does not take, alone or with its negative one."""
    prompts = request.prompts
    # A set has more pictures than one call takes, and may have more prompts.
    for start in range(0, len(prompts), MOST_PICTURES):
        part = slice(start, start + MOST_PICTURES)
        try:
            pipeline.check(prompts[part], negative_prompt=negatives_of(request, part))
        except ValueError:
            for number in range(start, min(part.stop, len(prompts))):
                prompt, negative = prompts[number], negatives_of(request, slice(number, number + 1))
                try:
                    pipeline.check([prompt], negative_prompt=negative)
                except ValueError as error:
                    shown = errors.short(repr(prompt), 200)
                    raise LanternError(f"prompt {number + 1} of the set, {shown}: {error}") from None
            raise


def _reader(request: SetRequest) -> "FeatureReader | None":
    if request.sums is False or (request.sums is None and request.model != "demo"):
        return None
    from lantern_jax.apps.metrics.agreement import demo_features

    return demo_features()
