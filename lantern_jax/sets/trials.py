"""How to guess for a set that leaves this open: its first batches are decoded in different ways, timed and noted.

Strict decoding on the shared noise gives the same tokens in every way.

Axes: n pictures.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from lantern_jax.engine.generation import summarise
from lantern_jax.engine.jobs import Job, Run
from lantern_jax.pipeline.plan import Plan
from lantern_jax.sets.request import OpenedSet
from lantern_jax.settings.choice import point_of
from lantern_jax.settings.settings import Settings
from lantern_jax.settings.tuned import Found

# The largest share of a set's time, compiling included, spent on trying ways that may turn out slower.
SHARE = 0.05


def decoded(
    opened: OpenedSet, call: Plan, job: Job, numbers: Int[np.ndarray, " n"], rows: Int[np.ndarray, " n"]
) -> Iterator[tuple[Run, Any]]:
    """Decodes sequences as ``Plan.stream`` does, most of them in the way that proved fastest.

    Batches are decoded alone while there is something to find out: the first one in the way that was chosen, then one
    in each way that may be faster and was never timed, as long as these trials take only a few per cent of the time. A
    trial is expected to take as long as the slowest batch so far, and is charged with the time that it took.
    """
    if opened.asked is None:
        yield from call.stream(job, numbers, rows)
        return
    pipeline, batch, tried = opened.pipeline, call.settings.batch, set()
    settings, left, slowest = call.settings, None, 0.0
    while len(numbers) > batch:
        tried.add(point_of(settings))
        parts = []
        for run, part in call.stream(pipeline.job(settings), numbers[:batch], rows[:batch], refill=False):
            yield run, part
            parts += [] if part is None else [part.decoded]
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        note = pipeline.auto.noting(settings, batch)
        if note is not None:
            note(point_of(settings), summarise(joined, run.timing))
        numbers, rows = numbers[batch:], rows[batch:]
        choice = pipeline.auto.choice(batch, opened.asked, max(1.0, len(numbers) / batch))
        spent = run.timing.compiling + run.timing.decoding
        # The first batch is no trial: it says how long the set should take.
        left = SHARE * run.timing.decoding * len(numbers) / batch if left is None else left - spent
        slowest = max(slowest, spent)
        trial = choice.untried(tried) if slowest <= left else None
        settings = _settings(opened, (trial or choice.way).knobs)
        if trial is None:
            break
    yield from call.stream(pipeline.job(settings), numbers, rows)


def _settings(opened: OpenedSet, knobs: dict[str, Any]) -> Settings:
    return opened.pipeline.settings(Found(knobs).under(opened.asked))
