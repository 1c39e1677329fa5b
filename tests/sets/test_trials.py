"""Guesses that a set tries while it is made."""

from types import SimpleNamespace

import numpy as np
import pytest

from lantern_jax.sets import trials
from lantern_jax.sets.plan import Worker, begin
from lantern_jax.sets.request import OpenedSet
from lantern_jax.sets.shards import read_arrays
from lantern_jax.sets.worker import make_set
from lantern_jax.settings.choice import PLAIN, Choice, Way, WindowPoint
from lantern_jax.settings.tuned import Found
from tests.sets.making import KNOBS, READER, a_plan
from tests.tiny_checkpoint import TOKENS, tiny_pipeline


@pytest.mark.parametrize("share", [1e9, 0.0])
def test_a_set_tries_other_guesses_on_a_batch_and_keeps_its_tokens(share, whole, tmp_path, monkeypatch):
    """Only where they take few per cent of the time; the first batch is noted in any case."""
    pipeline, noted, other = tiny_pipeline(), [], WindowPoint(3)
    usual, another = (Way(point, 1, 1.0, 1.0, speedup) for point, speedup in ((PLAIN, 1.0), (other, 0.95)))
    auto = SimpleNamespace(
        find=lambda count, knobs: Found(),
        choice=lambda count, knobs, turns=None: Choice(usual, (usual, another)),
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
