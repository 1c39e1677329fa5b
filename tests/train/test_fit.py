"""What drafting weighs by, fitted from logged rounds."""

import numpy as np
import pytest

from lantern_jax.decoding.echo import Echo
from lantern_jax.settings.auto import ACCEPTANCE
from tests.refused import refused
from tests.tiny_checkpoint import tiny_checkpoint
from train import fit as fitting
from train.fit import BETAS, KINDS, SHARES, best_mixture, fitted


def test_the_mixture_of_least_cross_entropy_is_taken():
    entropy = np.ones((KINDS, len(SHARES), len(SHARES)))
    entropy[1, 20, 5] = entropy[3, 0, 25] = entropy[4, 1, 24] = 0.5
    places = np.array([3.0, 5.0, 0.0, 2.0, 1.0])
    echo = Echo(position=(0.8, 0.2), token=Echo().token, parent=(0.0, 1.0), grandparent=(0.04, 0.96))
    assert best_mixture(entropy, places) == echo


@pytest.mark.slow
def test_a_drafter_that_knows_nothing_is_outweighed_by_memory(monkeypatch):
    monkeypatch.setattr(fitting, "WINDOW", 6)
    monkeypatch.setattr(fitting, "window_acceptance", lambda _, pictures: {"windows": pictures})
    checkpoint = tiny_checkpoint()
    found = fitted(checkpoint, "eagle", 8)
    assert found.defaults["sharpness"] in np.round(BETAS, 2)
    of_token = found.defaults["mixture"][2:4]
    assert of_token[1] > of_token[0], found.defaults
    assert found.metadata == checkpoint.metadata | {ACCEPTANCE: {"windows": 8}}
    assert (
        checkpoint.defaults == tiny_checkpoint().defaults and found.target_params is checkpoint.target_params
    )


def test_only_what_the_checkpoint_has_is_fitted():
    with refused("no drafter 'eagle4'"):
        fitted(tiny_checkpoint(), "eagle4", 8)
