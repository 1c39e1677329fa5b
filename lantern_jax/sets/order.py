"""What a picture set is ordered with; opening the checkpoint that it names turns it into a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lantern_jax.decoding.knobs import MOST_PICTURES
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError
from lantern_jax.sets.plan import SetPlan, check_size
from lantern_jax.settings.settings import settings_json

if TYPE_CHECKING:
    from lantern_jax.metrics.features import FeatureReader
    from lantern_jax.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class SetOrder:
    """What the person who wants a set says.

    Attributes:
        model: "demo" or a checkpoint's directory.
        dtype: of parameters and products; None for the device's own.
        mesh: how devices share the work, as ``pipeline.load`` takes it in words; None for all, each with a model.
        knobs: of the generation by name, None where nothing was said.
        prompts, num, seed, format, shard_size: as in ``SetPlan``.
        sums: whether sums of the demo's features are kept; None: for the demo.

    Raises:
        ValueError: as ``check_size``.
    """

    model: str
    dtype: str | None
    mesh: str | None
    knobs: Mapping[str, Any]
    prompts: tuple[str, ...]
    num: int
    seed: int
    format: str
    shard_size: int
    sums: bool | None

    def __post_init__(self):
        check_size(len(self.prompts), self.num, self.shard_size)


@dataclass(frozen=True)
class Opened:
    """What makes a set: the models, what they are to make, and what reads features for its sums.

    Attributes:
        knobs: the order's, and tuned ones where it says nothing of how to decode: those of ``plan.settings``.
        note: a line on tuned settings and on knobs without effect; empty where there is nothing to say.
    """

    pipeline: "Pipeline"
    plan: SetPlan
    knobs: Mapping[str, Any]
    note: str
    reader: "FeatureReader | None"


def open_order(order: SetOrder) -> Opened:
    """Opens the checkpoint and settles on it what the set holds; parameters are read later.

    Raises:
        ValueError: no such checkpoint, one that cannot draw, or knobs or a prompt that do not fit it, which is named.
    """
    from lantern_jax.checkpoints.store import model_directory
    from lantern_jax.devices.compilation import keep_compiled_programs
    from lantern_jax.pipeline.pipeline import load
    from lantern_jax.settings.recipe import without_effect
    from lantern_jax.tensors.checksums import checkpoint_digest

    keep_compiled_programs()
    pipeline = load(order.model, order.dtype, mesh=order.mesh)
    pipeline.settings(order.knobs)
    _check_prompts(order, pipeline)
    if not pipeline.draws:
        raise LanternError(f"{order.model} has no VQ tokenizer to draw with: convert it again with one")
    reader = _reader(order)
    # Looked up once for the whole set: all parts of it are decoded in the same way.
    tuned = pipeline.tuning(len(order.prompts) * order.num, **order.knobs)
    knobs = {**tuned.knobs, **{name: value for name, value in order.knobs.items() if value is not None}}
    settings = pipeline.settings(knobs)
    notes = (tuned.note, *without_effect(order.knobs, settings))
    plan = SetPlan(
        prompts=order.prompts,
        num=order.num,
        seed=order.seed,
        model=checkpoint_digest(model_directory(order.model)),
        dtype=pipeline.dtype.name,
        settings=settings_json(settings),
        format=order.format,
        shard_size=order.shard_size,
        sums=None if reader is None else reader.name,
    )
    return Opened(pipeline, plan, knobs, "; ".join(filter(None, notes)), reader)


def _check_prompts(order: SetOrder, pipeline: "Pipeline") -> None:
    """Raises ValueError of prompts that the model does not take; it names the first."""
    # A set has more pictures, and may have more prompts, than one call.
    for start in range(0, len(order.prompts), MOST_PICTURES):
        part = order.prompts[start : start + MOST_PICTURES]
        try:
            pipeline.check(part)
        except ValueError:
            for number, prompt in enumerate(part, start + 1):
                try:
                    pipeline.check([prompt])
                except ValueError as error:
                    shown = errors.short(repr(prompt), 200)
                    raise LanternError(f"prompt {number} of the set, {shown}: {error}") from None
            raise


def _reader(order: SetOrder) -> "FeatureReader | None":
    """The reader of the features whose sums are kept; None where none are."""
    if order.sums is False or (order.sums is None and order.model != "demo"):
        return None
    from lantern_jax.metrics.agreement import demo_features

    return demo_features()
