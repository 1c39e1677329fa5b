"""The sharpness and mixture of drafting, fitted from logged rounds."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS
from lantern_jax.decoding.echo import LEAST, Echo, blended
from tests.command import must_not_run
from tests.refused import refused
from tests.tiny_checkpoint import drafters, tiny_checkpoint
from train import fit as fitting
from train.fit import BETAS, KINDS, SHARES, Fit, best_mixture, cross_entropy, fitted, log_likelihood
from train.sources import landscapes


def test_the_mixture_of_least_cross_entropy_is_taken():
    entropy = np.ones((KINDS, len(SHARES), len(SHARES)))
    entropy[1, 20, 5] = entropy[3, 0, 25] = entropy[4, 1, 24] = 0.5
    places = np.array([3.0, 5.0, 0.0, 2.0, 1.0])
    echo = Echo(position=(0.8, 0.2), token=Echo().token, parent=(0.0, 1.0), grandparent=(0.04, 0.96))
    assert best_mixture(entropy, places) == echo


def test_codes_that_a_filter_takes_out_are_fitted_as_they_are_blended():
    """From q, from what is recalled, and from both; a wanted code that was taken out makes no beta likelier."""
    scores = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    log_q, old = scores.copy(), scores[::-1].copy()
    log_q[:2, 0] = old[1:, 0] = old[1, 1] = -np.inf
    p = np.full((3, 6), 1 / 6, np.float32)
    for a, b in ((0.0, 0.0), (0.0, 1.0), (0.6, 0.0), (0.5, 0.7)):
        made = blended(Echo(position=(a, b)), jnp.asarray(log_q), jnp.asarray(old), jnp.ones(3, jnp.int32))
        expected = -(p * np.maximum(made, LEAST)).sum(axis=-1)
        found = cross_entropy(p, jnp.asarray(log_q), jnp.asarray(old), jnp.float32(a), jnp.float32(b))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert np.isfinite(found).all()
    likely = log_likelihood(jnp.asarray(log_q), jnp.zeros(3, jnp.int32), jnp.float32(2))
    np.testing.assert_array_equal(likely[:2], 0)
    assert -np.inf < likely[2] < 0


def test_fitting_takes_other_pictures_than_features_and_measures_windows_with_the_fitted_values(monkeypatch):
    checkpoint, seen = tiny_checkpoint(), {}
    echo = Echo(position=(0.5, 0.25))

    def fit(pipeline, kind, conditioning, seed):
        seen.update(labels=np.asarray(conditioning), seed=seed)
        return Fit(2.0, echo, (1,) * KINDS)

    def tokens_of_guesses(subject, pictures):
        seen.update(subject=subject)
        return {}

    monkeypatch.setattr(fitting, "fit", fit)
    monkeypatch.setattr(fitting, "tokens_of_guesses", tokens_of_guesses)
    found = fitted(checkpoint, "eagle", 8)
    nothing = np.zeros((0, checkpoint.vocabulary.num_attributes), np.int32)
    trained = landscapes(checkpoint, nothing, nothing, 8, 0)[1].conditioning(np.arange(8))
    subject = seen["subject"]
    assert not np.array_equal(seen["labels"], trained) and 0 not in (seen["seed"], subject.seed)
    np.testing.assert_array_equal(subject.conditioning, seen["labels"])
    assert subject.settings({"method": "led"}).drafting.mixture == echo
    assert subject.recipe.defaults == found.defaults and found.defaults["sharpness"] == 2.0
    assert found.metadata[TOKENS_PER_PASS] == {}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, {"top_k": 8, "top_p": 0.9}, {"temperature": 0.0}])
def test_a_drafter_that_knows_nothing_is_outweighed_by_memory(monkeypatch, sampling):
    monkeypatch.setattr(fitting, "WINDOW", 6)
    monkeypatch.setattr(fitting, "tokens_of_guesses", lambda _, pictures: {"windows": pictures})
    checkpoint = tiny_checkpoint()
    checkpoint = dataclasses.replace(checkpoint, defaults=checkpoint.defaults | sampling)
    found = fitted(checkpoint, "eagle", 8)
    assert found.defaults["sharpness"] in np.round(BETAS, 2)
    of_token = Echo.of(found.defaults["mixture"]).token
    assert of_token[1] > of_token[0], found.defaults
    assert found.metadata == checkpoint.metadata | {TOKENS_PER_PASS: {"windows": 8}}
    assert checkpoint.defaults == tiny_checkpoint().defaults | sampling
    assert found.target_params is checkpoint.target_params


def test_only_the_drafter_that_leads_windows_is_fitted(monkeypatch):
    monkeypatch.setattr(fitting, "Pipeline", must_not_run)
    several = dataclasses.replace(tiny_checkpoint(), drafters=drafters())
    with refused("no drafter 'eagle4'"):
        fitted(tiny_checkpoint(), "eagle4", 8)
    with refused("drafter 'eagle3' leads no windows .* has 'eagle': give --drafter eagle"):
        fitted(several, "eagle3", 8)
