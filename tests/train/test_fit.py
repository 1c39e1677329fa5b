"""What drafting weighs by, fitted from logged rounds."""

import numpy as np
import pytest

from lantern_jax.decoding.echo import Echo
from lantern_jax.pipeline.pipeline import Pipeline
from tests.tiny_checkpoint import tiny_checkpoint
from train import fit as fitting
from train.fit import BETAS, KINDS, SHARES, best_mixture, fit


def test_the_mixture_of_least_cross_entropy_is_taken():
    entropy = np.ones((KINDS, len(SHARES), len(SHARES)))
    entropy[1, 20, 5] = entropy[3, 0, 25] = entropy[4, 1, 24] = 0.5
    places = np.array([3.0, 5.0, 0.0, 2.0, 1.0])
    echo = Echo(position=(0.8, 0.2), token=Echo().token, parent=(0.0, 1.0), grandparent=(0.04, 0.96))
    assert best_mixture(entropy, places) == echo


@pytest.mark.slow
def test_a_drafter_that_knows_nothing_is_outweighed_by_memory(monkeypatch):
    monkeypatch.setattr(fitting, "WINDOW", 6)
    pipeline = Pipeline(tiny_checkpoint())
    labels = np.random.default_rng(0).integers(0, 4, (8, 4)).astype(np.int32)
    labels += pipeline.checkpoint.target_config.num_labels // 4 * np.arange(4, dtype=np.int32)
    found = fit(pipeline, "eagle", labels)
    assert found.sharpness in np.round(BETAS, 2) and sum(found.places) > 8
    a, b = found.echo.token
    assert b > a, found
