"""Making a worker's part of a picture set: sequences stream through refilled slots, shards are written whole.

Axes: n pictures, C codes of a picture, H W height and width.
"""

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.apps.metrics.moments import Moments
from lantern_jax.apps.sets.kept import EVERY, Known, keep, read_kept
from lantern_jax.apps.sets.plan import SetPlan, Worker, is_leftover, shard_paths
from lantern_jax.apps.sets.request import OpenedSet
from lantern_jax.apps.sets.shards import is_whole, write_shard
from lantern_jax.devices import hosts
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Progress
from lantern_jax.engine.jobs import Job
from lantern_jax.models.sizes import shape_of
from lantern_jax.pipeline.drawing import draw_codes
from lantern_jax.pipeline.plan import Plan, batches

# Pictures drawn together, for any batch size: a picture's bytes depend on nothing but its shard.
DRAWN = 8


def make_set(
    opened: OpenedSet,
    directory: Path,
    worker: Worker,
    *,
    progress: Callable[[Progress], None] = lambda now: None,
    written: Callable[[int, Progress], None] = lambda shard, now: None,
) -> int:
    """Makes the missing shards of a worker's part and returns how many pictures they hold.

    A shard is complete once its last file has its name. Pictures that are in no shard yet are kept every few seconds
    and at a stop, except where several processes share a mesh; of these the first one writes. A thread writes one shard
    while the next one is decoded.

    Args:
        directory: where ``plan.begin`` wrote the plan.
        progress: called several times per second; counts what this call makes.
        written: called with the number of each shard once it is written.

    Raises:
        LanternError: the model's numbers are not finite.
        OSError: one line: a shard cannot be written.
    """
    plan, engine, reader = opened.plan, opened.pipeline.engine, opened.reader
    writes = not engine.spans or hosts.is_first()
    left = _left(engine, plan, directory, worker)
    waiting: list[tuple[Future, int, Progress]] = []
    keeps = not engine.spans
    held = known_pictures(opened, directory, left) if keeps else {}
    kept = time.monotonic()

    def drop(shard: int) -> None:
        for number in plan.numbers(shard).tolist():
            held.pop(number, None)

    def settle() -> None:
        made, shard, then = waiting.pop()
        made.result()
        drop(shard)
        written(shard, then)

    with contextlib.ExitStack() as stack:
        if keeps:
            stack.callback(keep, directory, worker, held)
        thread = stack.enter_context(ThreadPoolExecutor(1, "shards"))
        for now, drawn in _drawn_shards(opened, left, held):
            if keeps and time.monotonic() - kept > EVERY:
                keep(directory, worker, held)
                kept = time.monotonic()
            if drawn is None:
                progress(now)
            if waiting and (drawn is not None or waiting[0][0].done()):
                settle()
            if drawn is not None and not writes:
                drop(drawn[0])
            elif drawn is not None:
                shard, pictures, tokens, rounds = drawn
                sums = None if reader is None else Moments.of(reader.features(pictures))
                made = thread.submit(write_shard, directory, plan, shard, pictures, tokens, rounds, sums)
                waiting.append((made, shard, now))
        if waiting:
            settle()
    # Once all shards are there, no worker writes any more: what killed ones left is removed.
    for path in filter(is_leftover, directory.iterdir() if writes and not plan.missing(directory) else ()):
        _remove(path)
    return sum(len(plan.numbers(shard)) for shard in left)


def discard_damaged(
    directory: Path, plan: SetPlan, shards: Iterable[int], note: Callable[[str], None]
) -> None:
    """Removes the pictures of each shard that is there but not whole, so that it is made again.

    Call it only for shards that no other worker makes: theirs may be replaced by whole ones meanwhile.

    Args:
        note: called with a line about each.
    """
    shards = list(shards)
    for shard in sorted(set(shards) - set(plan.missing(directory, shards))):
        if not is_whole(directory, plan, shard):
            note(f"shard {shard} of {directory} is damaged: it is made again")
            _remove(shard_paths(directory, plan, shard)[1])


def _left(engine: Engine, plan: SetPlan, directory: Path, worker: Worker) -> list[int]:
    """Returns a worker's missing shards; of several processes the first one looks on behalf of all."""
    left = plan.missing(directory, worker.shards(plan))
    if not engine.spans:
        return left
    is_left = np.zeros(plan.shards, bool)
    is_left[left] = True
    return np.flatnonzero(hosts.agreed(is_left)).tolist()


def _remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def known_pictures(opened: OpenedSet, directory: Path, shards: Sequence[int]) -> dict[int, Known]:
    """Returns the pictures of missing shards that workers kept, by number."""
    config = opened.pipeline.recipe.config
    wanted = {number for shard in shards for number in opened.plan.numbers(shard).tolist()}
    return read_kept(directory, wanted, math.prod(shape_of(config)), config.num_codes)


def _drawn_shards(
    opened: OpenedSet, shards: list[int], held: dict[int, Known]
) -> Iterator[tuple[Progress, tuple[int, np.ndarray, np.ndarray, np.ndarray] | None]]:
    """Decodes shards; yields the progress after every piece of work, then each complete shard with its progress.

    A shard is its number, pictures uint8 [n, H, W, 3], tokens int32 [n, C] and rounds int32 [n].

    Args:
        held: known pictures by their numbers; decoded ones are added.
    """
    plan, engine = opened.plan, opened.pipeline.engine

    def drawn(shard: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        known = (held[number] for number in plan.numbers(shard).tolist())
        tokens, rounds = (np.stack(leaves) for leaves in zip(*known, strict=True))
        return shard, np.concatenate(list(_drawn(engine, tokens, plan.numbers(shard)))), tokens, rounds

    def is_known(shard: int) -> bool:
        return all(number in held for number in plan.numbers(shard).tolist())

    every = np.concatenate([np.zeros(0, int), *(plan.numbers(shard) for shard in shards)])
    numbers = np.array([number for number in every.tolist() if number not in held], int)
    kept = done = len(held)
    for shard in filter(is_known, shards):
        yield Progress(done, len(every), done, len(every), 0.0), drawn(shard)
    if not len(numbers):
        return
    call, job, rows = _call(opened, numbers)
    began = time.perf_counter()
    for run, part in call.stream(job, numbers, rows):
        fresh = () if part is None else part.numbers.tolist()
        if part is not None:
            made = zip(part.decoded.tokens, part.decoded.rounds, strict=True)
            done += len(fresh)
            held.update(zip(fresh, made, strict=True))
        known = done * run.total + int(run.lengths[~run.finished].sum())
        spent = time.perf_counter() - began - run.timing.compiling
        # As if the kept pictures had been decoded at the same speed.
        spent *= known / max(known - kept * run.total, 1)
        now = Progress(known, len(every) * run.total, done, len(every), spent)
        yield now, None
        for shard in filter(is_known, sorted({number // plan.shard_size for number in fresh})):
            yield now, drawn(shard)


def _call(opened: OpenedSet, numbers: Int[np.ndarray, " n"]) -> tuple[Plan, Job, np.ndarray]:
    """Returns the plan of a call, its job, and the row of its conditioning for every number.

    A text encoder reads only the prompts that are left. Without one all prompts are encoded: token prompts are padded
    to the longest, and their padding must not depend on which are left.
    """
    pipeline, plan = opened.pipeline, opened.plan
    wanted = np.arange(len(plan.prompts))
    if pipeline.checkpoint.text_encoder_config is not None:
        wanted = np.unique(numbers // plan.num)
    against = plan.negatives if len(plan.negatives) < 2 else [plan.negatives[row] for row in wanted]
    encoded = pipeline.encode([plan.prompts[row] for row in wanted], against or None)
    call, job = pipeline.prepare(encoded, num=plan.num, seed=plan.seed, **opened.options)
    return call, job, np.searchsorted(wanted, numbers // plan.num)


def _drawn(
    engine: Engine, tokens: Int[np.ndarray, "n C"], numbers: Int[np.ndarray, " n"]
) -> Iterator[UInt8[np.ndarray, "b H W 3"]]:
    """Draws pictures, always with the same program."""
    for part in batches(len(tokens), DRAWN):
        group = tokens[part]
        repeated = np.resize(group, (DRAWN, group.shape[1]))
        pictures, _ = draw_codes(engine, repeated, numbers=np.resize(numbers[part], DRAWN))
        yield pictures[: len(group)]
