"""Ways to guess that a set tries while it is made."""

from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.checkpoints.windows import PLAIN, WindowPoint
from lantern_jax.engine.generation import Timing
from lantern_jax.sets import trials
from lantern_jax.sets.plan import Worker, begin
from lantern_jax.sets.request import OpenedSet
from lantern_jax.sets.shards import read_arrays
from lantern_jax.sets.worker import make_set
from lantern_jax.settings.choice import Choice, Way, point_of_knobs
from lantern_jax.settings.tuned import Found
from tests.sets.making import KNOBS, READER, a_plan
from tests.tiny_checkpoint import TOKENS, tiny_pipeline


@pytest.mark.parametrize("share", [1e9, 0.0])
def test_a_set_tries_other_guesses_on_a_batch_and_keeps_its_tokens(share, whole, tmp_path, monkeypatch):
    """Only if they take a few per cent of the time, and none that is much slower; the first batch is always noted."""
    pipeline, noted, other = tiny_pipeline(), [], WindowPoint(3)
    speedups = {PLAIN: 1.0, other: 0.95, WindowPoint(5): 0.85}
    usual, *others = (Way(point, 1, 1.0, 1.0, speedup) for point, speedup in speedups.items())
    auto = SimpleNamespace(
        find=lambda count, knobs: Found(),
        choice=lambda count, knobs, turns=None: Choice(usual, (usual, *others)),
        noting=lambda settings, count: lambda point, made: noted.append((point, made.pictures, made.tokens)),
    )
    monkeypatch.setattr(pipeline, "auto", auto)
    monkeypatch.setattr(trials, "SHARE", share)
    opened = OpenedSet(pipeline, a_plan(), {"method": "ar", **KNOBS}, reader=READER, asked=KNOBS)
    begin(tmp_path / "set", opened.plan)
    assert make_set(opened, tmp_path / "set", Worker()) == 14
    made, expected = (
        {name: np.concatenate([read_arrays(place, opened.plan, shard)[name] for shard in range(5)])
         for name in ("tokens", "rounds")}
        for place in (tmp_path / "set", whole)
    )  # fmt: skip
    assert np.array_equal(made["tokens"], expected["tokens"])
    guessed = np.flatnonzero(made["rounds"] < made["rounds"].max()).tolist()
    assert guessed == ([4, 5, 6, 7] if share else [])
    assert noted == [(point, 4, 4 * TOKENS) for point in ((PLAIN, other) if share else (PLAIN,))]


@pytest.mark.parametrize(("compiling", "decoding", "tried"), [(0, 0.1, 5), (0.5, 1, 3), (20, 1, 1)])
def test_trials_are_charged_with_the_time_that_they_took(compiling, decoding, tried, monkeypatch):
    """Of 100 batches of a second each, without the first, trials have 4.95 seconds."""
    points = [WindowPoint(window) for window in range(2, 7)]
    usual, *others = (Way(point, 1, 1.0, 1.0, 1.0) for point in (PLAIN, *points))
    streamed = []

    def stream(job, numbers, rows, refill=True):
        streamed.append((job.point, len(numbers)))
        timing = Timing(1.0) if job.point == PLAIN else Timing(decoding, compiling=compiling)
        yield SimpleNamespace(timing=timing), SimpleNamespace(decoded=np.zeros(1))

    def settings(opened, knobs):
        return SimpleNamespace(batch=4, point=point_of_knobs(knobs))

    monkeypatch.setattr(trials, "_settings", settings)
    monkeypatch.setattr(trials, "point_of", lambda settings: settings.point)
    choice = Choice(usual, (usual, *others))
    auto = SimpleNamespace(choice=lambda *call: choice, noting=lambda settings, count: None)
    opened = SimpleNamespace(asked={}, pipeline=SimpleNamespace(auto=auto, job=lambda settings: settings))
    call = SimpleNamespace(settings=settings(opened, usual.knobs), stream=stream)
    list(trials.decoded(opened, call, call.settings, np.arange(400), np.arange(400)))
    assert streamed == [(PLAIN, 4), *((point, 4) for point in points[:tried]), (PLAIN, 396 - 4 * tried)]
