"""What drafting weighs by, fitted from logged rounds."""

import numpy as np
import pytest

from lantern_jax.decoding.echo import Echo
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.pipeline.pipeline import Pipeline
from tests.tiny_checkpoint import TREE, tiny_checkpoint
from train import fit as fitting
from train.fit import BETAS, SHARES, best_mixture, fit


def test_the_mixture_of_least_cross_entropy_is_taken():
    entropy = np.ones((4, len(SHARES), len(SHARES)))
    entropy[1, 8, 2] = entropy[3, 0, 10] = 0.5
    nodes = np.array([3.0, 5.0, 0.0, 2.0])
    assert best_mixture(entropy, nodes) == Echo(position=(0.8, 0.2), token=Echo().token, parent=(0.0, 1.0))


@pytest.mark.slow
def test_a_drafter_that_knows_nothing_is_outweighed_by_memory(monkeypatch):
    # Every pair of shares is operations of its own in the program, and so is every level.
    monkeypatch.setattr(fitting, "named_tree", lambda name: DraftTree.from_paths(TREE))
    monkeypatch.setattr(fitting, "SHARES", SHARES[:4])
    monkeypatch.setattr(fitting, "BETAS", BETAS[::4])
    pipeline = Pipeline(tiny_checkpoint())
    labels = np.random.default_rng(0).integers(0, 4, (8, 4)).astype(np.int32)
    labels += pipeline.checkpoint.target_config.num_labels // 4 * np.arange(4, dtype=np.int32)
    found = fit(pipeline, "eagle", labels)
    assert found.sharpness in np.round(BETAS, 2) and sum(found.nodes) > 8
    a, b = found.echo.position
    assert b > a, found
