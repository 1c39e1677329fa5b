"""Log-probabilities of a generation: the model's own, for any method, batch and mesh, and only on request."""

import jax
import numpy as np
import pytest

from lantern_jax.decoding.sampling import SamplingParams, process_logits
from lantern_jax.families.llamagen.model import LlamaGen
from tests.cases import exhaustive, slow
from tests.tiny_checkpoint import CODES, TARGET, TOKENS, pipeline_on, tiny_pipeline

PROMPTS = ["a lake", "a foggy forest", "hills"]
OPTIONS = {"seed": 3, "guidance": 2.0, "temperature": 0.7, "top_k": 12}


@pytest.fixture(scope="module")
def plain():
    return tiny_pipeline().generate(PROMPTS, method="ar", log_probs=True, **OPTIONS)


def test_log_probs_are_those_of_the_sampling_distribution(plain):
    """They are those of whole rows, teacher-forced, each guidance row alone.

    Tokens were drawn from them: mostly likely ones, and none that a filter takes out.
    """
    assert plain.log_probs.shape == (3, TOKENS) and plain.log_probs.dtype == np.float32
    assert np.isfinite(plain.log_probs).all() and plain.log_probs.max() <= 0
    assert plain.log_probs.mean() > -np.log(CODES)
    labels = tiny_pipeline().encode(PROMPTS).arrays["labels"]
    apply, params = jax.jit(LlamaGen(TARGET).apply), tiny_pipeline().checkpoint.target_params
    wanted, against = (
        apply(params, rows, plain.tokens)[1]
        for rows in (labels, np.tile(np.int32(TARGET.null_labels), (3, 1)))
    )
    log_p = process_logits(against + 2 * (wanted - against), SamplingParams.create(0.7, 12))
    expected = np.take_along_axis(np.asarray(log_p), plain.tokens[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(plain.log_probs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("given", [
    {"method": "jacobi", "batch": 3},
    *map(exhaustive, ({"method": "led"}, {"batch": 1})),
], ids=str)  # fmt: skip
def test_the_same_tokens_have_the_same_log_probs(given, plain):
    made = tiny_pipeline().generate(PROMPTS, log_probs=True, **OPTIONS, **given)
    np.testing.assert_array_equal(made.tokens, plain.tokens)
    np.testing.assert_allclose(made.log_probs, plain.log_probs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("given", [
    {"method": "jacobi", "rule": "lantern++:lam=300"}, slow({"method": "zipar:ahead=1"}),
    exhaustive({"method": "lantern:nodes=6,children=3,frontier=2,depth=3"}),
], ids=str)  # fmt: skip
def test_other_tokens_have_the_models_own_log_probs(given):
    """With a relaxed rule and with rows in parallel: plain decoding's, as far as the tokens are its own."""
    made = tiny_pipeline().generate(PROMPTS, log_probs=True, compare=True, **OPTIONS, **given)
    same = made.tokens == made.plain.tokens
    until = np.logical_and.accumulate(same, axis=1)
    np.testing.assert_allclose(made.log_probs[until], made.plain.log_probs[until], rtol=1e-4, atol=1e-4)
    assert not same.all() and not np.isnan(made.log_probs).any()


def test_devices_change_nothing(plain):
    pipeline = pipeline_on(2)
    job = pipeline.job(pipeline.check(PROMPTS[0], method="ar", **OPTIONS))
    made = pipeline.engine.log_probs(job, pipeline.encode(PROMPTS).arrays["labels"], plain.tokens)
    np.testing.assert_allclose(made, plain.log_probs, rtol=1e-4, atol=1e-4)


def test_given_tokens_have_no_log_probs(plain):
    """A picture completes itself: the rest has the same log-probabilities as in the whole."""
    made = tiny_pipeline().generate(
        PROMPTS, method="ar", log_probs=True, start=list(plain.tokens), keep_rows=2, **OPTIONS
    )
    assert (made.log_probs[:, : TOKENS // 2] == 0).all()
    np.testing.assert_allclose(
        made.log_probs[:, TOKENS // 2 :], plain.log_probs[:, TOKENS // 2 :], rtol=1e-4, atol=1e-4
    )
