"""Making a part of a picture set: sequences stream through refilled slots, shards are written whole.

Axes: n pictures, C codes of a picture, H W height and width.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from lantern_jax.apps.sets.opening import OpenedSet
from lantern_jax.apps.sets.set_plan import Part, SetPlan, is_leftover
from lantern_jax.apps.sets.shards import write_shard
from lantern_jax.apps.sets.unfinished import EVERY, Known, keep, read_kept
from lantern_jax.devices import hosts
from lantern_jax.engine.engine import Engine
from lantern_jax.engine.generation import Progress
from lantern_jax.engine.jobs import Job
from lantern_jax.pipeline.drawing import draw_codes
from lantern_jax.pipeline.plan import Plan, batches

# Pictures drawn together, for any batch size: a picture's bytes depend on nothing but its shard.
DRAWN = 8


def make_set(
    opened: OpenedSet,
    directory: Path,
    part: Part,
    *,
    progress: Callable[[Progress], None] = lambda now: None,
) -> int:
    """Makes the missing shards of a part and returns how many pictures they hold.

    A shard is complete once its last file has its name. Pictures that are in no shard yet are kept every few seconds
    and at a stop, except where several processes share a mesh; of these the first one writes. A thread writes one shard
    while the next one is decoded.

    Args:
        directory: where ``set_plan.begin`` wrote the plan.
        progress: called several times per second; counts what this call makes.

    Raises:
        LanternError: the model's numbers are not finite.
        OSError: one line: a shard cannot be written.
    """
    plan, engine = opened.plan, opened.pipeline.engine
    writes, keeps = not engine.spans or hosts.is_first(), not engine.spans
    left = _left(engine, plan, directory, part)
    wanted = {number for shard in left for number in plan.numbers(shard).tolist()}
    known = read_kept(directory, wanted) if keeps else {}
    writing: list[tuple[Future | None, int]] = []
    kept = time.monotonic()

    def finish_writing() -> None:
        while writing:
            written, shard = writing.pop()
            if written is not None:
                written.result()
            for number in plan.numbers(shard).tolist():
                known.pop(number, None)

    with contextlib.ExitStack() as stack:
        if keeps:
            stack.callback(keep, directory, part, known)
        thread = stack.enter_context(ThreadPoolExecutor(1, "shards"))
        for now, shard in _decoded_shards(opened, left, known):
            if keeps and time.monotonic() - kept > EVERY:
                keep(directory, part, known)
                kept = time.monotonic()
            progress(now)
            if shard is not None:
                finish_writing()
                drawn = _drawn(engine, plan.numbers(shard), known)
                written = thread.submit(write_shard, directory, plan, shard, *drawn) if writes else None
                writing.append((written, shard))
        finish_writing()
    # Once all shards are there, no worker writes any more: what killed ones left is removed.
    for path in filter(is_leftover, directory.iterdir() if writes and not plan.missing(directory) else ()):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return sum(len(plan.numbers(shard)) for shard in left)


def _left(engine: Engine, plan: SetPlan, directory: Path, part: Part) -> list[int]:
    """Returns a part's missing shards; of several processes the first one looks on behalf of all."""
    left = plan.missing(directory, part.shards(plan))
    if not engine.spans:
        return left
    is_left = np.zeros(plan.shards, bool)
    is_left[left] = True
    return np.flatnonzero(hosts.agreed(is_left)).tolist()


def _decoded_shards(
    opened: OpenedSet, shards: list[int], known: dict[int, Known]
) -> Iterator[tuple[Progress, int | None]]:
    """Decodes shards; yields the progress after every piece of work, and the number of a shard once it is decoded.

    Args:
        known: pictures by their numbers; decoded ones are added.
    """
    plan = opened.plan

    def is_known(shard: int) -> bool:
        return all(number in known for number in plan.numbers(shard).tolist())

    every = np.concatenate([np.zeros(0, int), *(plan.numbers(shard) for shard in shards)])
    numbers = np.array([number for number in every.tolist() if number not in known], int)
    kept = done = len(known)
    for shard in filter(is_known, shards):
        yield Progress(done, len(every), done, len(every), 0.0), shard
    if not len(numbers):
        return
    call, job, rows = _call(opened, numbers)
    began = time.perf_counter()
    for run, part in call.stream(job, numbers, rows):
        fresh = () if part is None else part.numbers.tolist()
        if part is not None:
            made = zip(part.decoded.tokens, part.decoded.rounds, strict=True)
            done += len(fresh)
            known.update(zip(fresh, made, strict=True))
        tokens = done * run.total + int(run.lengths[~run.finished].sum())
        spent = time.perf_counter() - began - run.timing.compiling
        # As if the kept pictures had been decoded at the same speed.
        spent *= tokens / max(tokens - kept * run.total, 1)
        now = Progress(tokens, len(every) * run.total, done, len(every), spent)
        yield now, None
        for shard in filter(is_known, sorted({number // plan.shard_size for number in fresh})):
            yield now, shard


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
    engine: Engine, numbers: Int[np.ndarray, " n"], known: dict[int, Known]
) -> tuple[UInt8[np.ndarray, "n H W 3"], Int[np.ndarray, "n C"], Int[np.ndarray, " n"]]:
    """Returns known pictures, always drawn with the same program, their tokens and rounds."""
    every = (known[number] for number in numbers.tolist())
    tokens, rounds = (np.stack(leaves) for leaves in zip(*every, strict=True))
    pictures = []
    for part in batches(len(tokens), DRAWN):
        repeated = np.resize(tokens[part], (DRAWN, tokens.shape[1]))
        drawn, _ = draw_codes(engine, repeated, numbers=np.resize(numbers[part], DRAWN))
        pictures.append(drawn[: len(tokens[part])])
    return np.concatenate(pictures), tokens, rounds
