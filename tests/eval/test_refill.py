"""The counts of ``eval.refill`` against the rounds of the same pictures made by ``generate``."""

import numpy as np
import pytest

from eval.refill import measure, prompts
from lantern_jax.pipeline import plan as call_plan
from tests.tiny_checkpoint import tiny_pipeline


@pytest.mark.exhaustive  # A script for people; test_refill.py tests what it runs.
def test_idle_slots_are_counted(monkeypatch):
    pipeline, batch, pictures = tiny_pipeline(), 4, 24
    # No drafter: it compiles sooner.
    found = measure(pipeline, "jacobi", pictures, batch, 1)
    made = pipeline.generate(prompts(pictures), seed=1, method="jacobi", batch=batch)
    rounds = made.round_of_token.max(axis=1).reshape(-1, batch)
    slots = batch * rounds.max(axis=1).sum()
    assert found["idle_without"] == pytest.approx(1 - rounds.sum() / slots)
    # One round at a time, a slot is refilled immediately: only slots that wait for the last pictures are idle.
    monkeypatch.setattr(call_plan, "PIECE_SECONDS", 0)
    found = measure(pipeline, "jacobi", pictures, batch, 1)
    free, queue = [0] * batch, list(rounds.ravel())
    for length in queue:
        free[int(np.argmin(free))] += length
    assert found["idle_with"] == pytest.approx(1 - rounds.sum() / (batch * max(free)))
    assert found["expected"] == pytest.approx(slots / (batch * max(free))) and found["expected"] > 1
