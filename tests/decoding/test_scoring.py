"""Log-probabilities of streams: those of each token alone, for any length, forced tokens and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax import stream_log_probs
from lantern_jax.decoding import completion
from lantern_jax.decoding.sampling import SamplingParams, process_logits
from lantern_jax.families.llamagen.model import LlamaGen
from lantern_jax.kernels.ways import traced_on
from tests.cases import exhaustive
from tests.refused import refused

from . import toy_models as toys

SAMPLINGS = {
    "plain": {}, "filters": {"temperature": 1.3, "top_k": 12, "top_p": 0.9}, "greedy": {"temperature": 0}
}  # fmt: skip


@pytest.mark.parametrize(
    ("piece", "name"),
    [
        (5, "filters"), (64, "greedy"),
        *(exhaustive(*case)
          for case in ((5, "plain"), (5, "greedy"), (64, "plain"), (64, "filters"))),
    ],
)  # fmt: skip
def test_tokens_have_the_probabilities_of_whole_rows(name, piece, monkeypatch):
    """Teacher-forced, each guidance row alone, with pieces that do not divide the stream and one that holds it."""
    monkeypatch.setattr(completion, "PIECE", piece)
    tokens, scale = toys.decode().tokens, jnp.full(toys.BATCH, 2.5)
    apply, params = jax.jit(LlamaGen(toys.CONFIG).apply), toys.target_params()
    labels, sampling = toys.conditioning(toys.BATCH), SamplingParams.create(**SAMPLINGS[name])
    wanted, against = (apply(params, rows, tokens)[1] for rows in (labels, jnp.full_like(labels, 5)))
    log_p = process_logits(against + 2.5 * (wanted - against), sampling)
    expected = np.take_along_axis(np.asarray(log_p), tokens[..., None], axis=-1)[..., 0]
    read = jax.jit(lambda tokens: stream_log_probs(
        toys.llamagen(), params, labels, tokens, guidance=scale, sampling=sampling
    ))  # fmt: skip
    np.testing.assert_allclose(read(tokens), expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(expected).any() and (name != "filters" or np.isneginf(expected).any())


def test_the_gradient_with_respect_to_parameters_agrees_with_small_steps():
    """In a program that may be lowered for any device."""
    target, params, labels = toys.llamagen(), toys.target_params(), toys.conditioning(2)
    tokens = jnp.asarray(toys.decode().tokens[:2])
    mean = jax.jit(jax.value_and_grad(lambda p: stream_log_probs(target, p, labels, tokens).mean()))
    with traced_on(None):
        _, gradient = mean(params)
        squares = sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(gradient))
        step = jnp.float32(0.01) / jnp.sqrt(squares)
        (above, _), (below, _) = (
            mean(jax.tree.map(lambda leaf, slope, step=step: leaf + step * slope, params, gradient))
            for step in (step, -step)
        )
    np.testing.assert_allclose((above - below) / (2 * step), squares, rtol=0.01)


def test_forced_tokens_are_certain():
    """On a chain, whose probabilities are a table."""
    target, params, conditioning = toys.stream("chain", 4)
    tokens = toys.decode(name="chain", batch=4, guided=False).tokens
    found = np.asarray(jax.jit(lambda tokens: stream_log_probs(target, params, conditioning, tokens))(tokens))
    before = np.concatenate([np.full((4, 1), toys.VOCAB), tokens[:, :-1]], axis=1)
    table = np.asarray(jax.nn.log_softmax(params, axis=-1))
    expected = np.where(target.forced < 0, table[before, tokens], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_forced_tokens_outside_the_codes_and_left_padding():
    """Lumina's rows: a prompt has the same log-probabilities in a batch as alone without its padding."""
    target, params, conditioning = toys.stream("lumina", 4)
    tokens = toys.decode(name="lumina", batch=4, guided=False).tokens
    read = jax.jit(lambda conditioning, tokens: stream_log_probs(target, params, conditioning, tokens))
    whole = np.asarray(read(conditioning, tokens))
    assert (whole[:, target.forced >= 0] == 0).all() and (whole[:, target.forced < 0] < 0).all()
    one = jax.tree.map(lambda leaf: leaf[:1, 1:], conditioning)
    alone = read(one, tokens[:1])
    np.testing.assert_allclose(alone[0], whole[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("llamagen", lambda tokens: tokens[:, :5], r"\(2, 5\): give whole streams \[B, 25\]"),
        ("llamagen", lambda tokens: tokens + 32, "tokens are 32 to 32: give 0 to 31"),
        ("chain", lambda tokens: tokens, "token 4 is not 11, which the stream's format forces there"),
    ],
)
def test_tokens_that_are_not_a_stream_are_refused(name, changed, message):
    target, params, conditioning = toys.stream(name, 2)
    with refused(message):
        stream_log_probs(target, params, conditioning, changed(np.zeros((2, target.num_tokens), np.int32)))
