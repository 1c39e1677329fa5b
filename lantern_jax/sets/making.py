"""Making a worker's part of a picture set: sequences stream through slots that are refilled, shards are written whole.

Axes: n pictures, C codes of a picture, H W height and width.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.devices import hosts
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Progress
from lantern_jax.engine.jobs import Job
from lantern_jax.io.errors import LanternError
from lantern_jax.metrics.features import FeatureReader
from lantern_jax.metrics.moments import Moments
from lantern_jax.pipeline.drawing import why_not_finite
from lantern_jax.pipeline.pipeline import Pipeline
from lantern_jax.pipeline.plan import Plan, batches
from lantern_jax.sets.plan import SetPlan, Worker, remove_leftovers
from lantern_jax.sets.writing import write_shard
from lantern_jax.settings.settings import Knobs

# Pictures drawn at once, whatever the batch: a picture's bytes depend on nothing but its shard.
DRAWN = 8


def make_set(
    pipeline: Pipeline,
    plan: SetPlan,
    directory: Path,
    worker: Worker,
    knobs: Knobs,
    *,
    reader: FeatureReader | None = None,
    progress: Callable[[Progress], None] = lambda now: None,
    written: Callable[[int, Progress], None] = lambda shard, now: None,
) -> int:
    """Makes those of a worker's shards that are not there yet; returns how many pictures that were.

    A shard is there once its last file has its name: a process that is stopped loses what is not written yet, and the
    next one makes that again, the same.

    Args:
        directory: where ``plan.begin`` wrote the plan.
        knobs: as the plan's settings were resolved from.
        reader: of ``plan.sums``.
        progress: called several times a second; counts what this call makes.
        written: called after every shard with its number.

    Raises:
        ValueError: numbers of the model that are not finite.
        OSError: one line: a shard cannot be written.
    """
    writes = not pipeline.engine.spans or hosts.is_first()
    if writes:
        remove_leftovers(directory, worker.shards(plan))
    left = _left(pipeline.engine, plan, directory, worker)
    for shard, now in make_shards(pipeline, plan, directory, left, knobs, reader=reader):
        if shard is None:
            progress(now)
        else:
            written(shard, now)
    # Once nobody writes any more nothing but the set is left.
    if writes and not plan.missing(directory):
        remove_leftovers(directory)
    return sum(len(plan.numbers(shard)) for shard in left)


def _left(engine: Engine, plan: SetPlan, directory: Path, worker: Worker) -> list[int]:
    """Those of a worker's shards that are not there; of several processes the first one looks for all."""
    left = plan.missing(directory, worker.shards(plan))
    if not engine.spans:
        return left
    is_left = np.zeros(plan.shards, bool)
    is_left[left] = True
    return np.flatnonzero(hosts.agreed(is_left)).tolist()


def make_shards(
    pipeline: Pipeline,
    plan: SetPlan,
    directory: Path,
    shards: Sequence[int],
    knobs: Knobs,
    *,
    reader: FeatureReader | None = None,
) -> Iterator[tuple[int | None, Progress]]:
    """Makes some shards of a set, whether they are there or not; the same shard made twice at once is the same file.
    Of several processes that share a mesh the first one writes.

    It yields (None, how far it is) several times a second, and (a shard, how far it is) once that is written.

    Args:
        shards: in the order in which they are begun.

    Raises:
        ValueError: numbers of the model that are not finite.
        OSError: one line: a shard cannot be written.
    """
    if not shards:
        return
    numbers = np.concatenate([plan.numbers(shard) for shard in shards])
    call, job, rows = _call(pipeline, plan, numbers, knobs)
    began, done, held = time.perf_counter(), 0, {}
    for run, part in call.stream(job, numbers, rows):
        fresh = () if part is None else part.numbers.tolist()
        if part is not None:
            decoded = zip(part.decoded.tokens, part.decoded.rounds, strict=True)
            done, held = done + len(fresh), held | dict(zip(fresh, decoded, strict=True))
        known = done * run.total + int(run.lengths[~run.finished].sum())
        spent = time.perf_counter() - began - run.timing.compiling
        now = Progress(known, len(numbers) * run.total, done, spent)
        yield None, now
        for shard in sorted({number // plan.shard_size for number in fresh}):
            if all(number in held for number in plan.numbers(shard).tolist()):
                _write(call.engine, directory, plan, shard, held, reader)
                yield shard, now


def _call(
    pipeline: Pipeline, plan: SetPlan, numbers: Int[np.ndarray, " n"], knobs
) -> tuple[Plan, Job, np.ndarray]:
    """What decodes, how, and the row of its conditioning for every number.

    A text encoder reads the prompts that are left. Where there is none all are encoded: token prompts are padded to the
    longest, and what is left must not change how.
    """
    wanted = np.arange(len(plan.prompts))
    if pipeline.checkpoint.text_encoder_config is not None:
        wanted = np.unique(numbers // plan.num)
    encoded = pipeline.encode([plan.prompts[row] for row in wanted])
    call, job = pipeline.prepare(encoded, num=plan.num, seed=plan.seed, **knobs)
    return call, job, np.searchsorted(wanted, numbers // plan.num)


def _write(engine: Engine, directory: Path, plan: SetPlan, shard: int, held: dict, reader) -> None:
    parts = [held.pop(number) for number in plan.numbers(shard).tolist()]
    tokens, rounds = (np.stack(leaves) for leaves in zip(*parts, strict=True))
    pictures = np.concatenate(list(_drawn(engine, tokens)))
    if engine.spans and not hosts.is_first():
        return
    sums = None if reader is None else Moments.of(reader.features(pictures))
    write_shard(directory, plan, shard, pictures, tokens, rounds, sums)


def _drawn(engine: Engine, tokens: Int[np.ndarray, "n C"]) -> Iterator[UInt8[np.ndarray, "b H W 3"]]:
    """Pictures, always by the same program."""
    for part in batches(len(tokens), DRAWN):
        group = tokens[part]
        pictures, finite, _ = engine.draw(np.resize(group, (DRAWN, group.shape[1])))
        if not finite.all():
            raise LanternError(why_not_finite(engine, "the pictures", ("tokenizer",)))
        yield pictures[: len(group)]
