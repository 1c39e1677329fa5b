"""The sampling distribution against a sorting reference, and the random streams."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lantern_jax.decoding.sampling import (
    SamplingParams,
    acceptance_uniforms,
    apply_guidance,
    draft_noise,
    first_argmax,
    gumbel_argmax,
    gumbel_noise,
    process_logits,
    residual_noise,
    top_children,
)

process = jax.jit(process_logits)


def reference(logits, temperature, top_k, top_p):
    """Sorts every row; float64."""
    rows = []
    for row in np.asarray(logits, np.float64).reshape(-1, logits.shape[-1]):
        row = row / (temperature or 1)
        if temperature and 0 < top_k < row.size:
            row = np.where(row >= np.sort(row)[-top_k], row, -np.inf)
        if temperature and top_p < 1:
            p = np.exp(row - row.max())
            p /= p.sum()
            row = np.where([p[row > value].sum() < top_p for value in row], row, -np.inf)
        rows.append(row - row.max() - np.log(np.exp(row - row.max()).sum()))
    return np.reshape(rows, logits.shape)


def make_logits(kind):
    rng = np.random.default_rng(3)
    logits = 3 * rng.standard_normal((2, 3, 40)).astype(np.float32)
    if kind == "ties":
        return np.round(logits)
    if kind == "masked":
        return np.where(rng.random(logits.shape) < 0.7, -np.inf, logits).astype(np.float32)
    if kind == "signs":
        return logits - np.float32(20) * np.arange(3, dtype=np.float32)[:, None]
    return logits


@pytest.mark.parametrize("kind", ["plain", "ties", "masked", "signs"])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.0])
def test_filters_agree_with_sorting(kind, temperature, assert_close):
    logits = make_logits(kind)
    for top_k in (0, 1, 5, 39, 40):
        for top_p in (1.0, 0.9, 0.33, 1e-6):
            actual = process(logits, SamplingParams.create(temperature, top_k, top_p))
            expected = reference(logits, temperature, top_k, top_p)
            np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected))
            assert_close(np.exp(actual), np.exp(expected), 1e-5)


def test_ties_at_the_threshold_stay():
    logits = jnp.asarray([[2.0, 1.0, 1.0, 0.0, -0.0, 1.0]])
    kept = process(logits, SamplingParams.create(top_k=2)) > -jnp.inf
    np.testing.assert_array_equal(kept, [[True, True, True, False, False, True]])
    kept = process(jnp.zeros((1, 6)), SamplingParams.create(top_p=0.01)) > -jnp.inf
    assert kept.all()


def test_masked_codes_are_never_kept():
    logits = jnp.asarray([[-jnp.inf, 0.0, -jnp.inf, 1.0]])
    probs = jnp.exp(process(logits, SamplingParams.create(top_k=3, top_p=0.999)))
    assert probs[0, 0] == 0 and probs[0, 2] == 0
    np.testing.assert_allclose(probs.sum(), 1, rtol=1e-6)


def test_no_sort_and_one_compilation():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 1024)), jnp.float32)
    assert "sort(" not in process.lower(logits, SamplingParams.create()).compile().as_text()
    chex.clear_trace_counter()
    counted = jax.jit(chex.assert_max_traces(process_logits, n=1))
    for knobs in [(1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 50, 0.9), (2.0, 1, 0.1)]:
        counted(logits, SamplingParams.create(*knobs))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": 11, "vocab_size": 10}, "more than the 10 codes"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams.create(**knobs)


def test_guidance():
    logits = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, 4, 5)), jnp.float32)
    scale = jnp.asarray([0.0, 1.0, 2.5])
    expected = logits[1] + scale[:, None, None] * (logits[0] - logits[1])
    np.testing.assert_allclose(apply_guidance(logits, scale), expected, rtol=1e-6)
    np.testing.assert_array_equal(apply_guidance(logits[:1], scale), logits[0])
    with pytest.raises(ValueError, match="3 guidance rows"):
        apply_guidance(jnp.zeros((3, 1, 2)), jnp.ones(1))


def test_noise_depends_on_key_and_position_alone():
    keys = jax.random.split(jax.random.key(0), 3)
    sampled = SamplingParams.create()
    positions = jnp.asarray([[0, 1], [5, 6], [0, 9]], jnp.int32)
    noise = gumbel_noise(keys, positions, 11, sampled)
    alone = gumbel_noise(keys[1:2], jnp.asarray([[6]], jnp.int32), 11, sampled)
    np.testing.assert_array_equal(alone[0, 0], noise[1, 1])
    assert not np.any(np.asarray(noise[0, 0]) == np.asarray(noise[2, 0]))
    greedy = gumbel_noise(keys, positions, 11, SamplingParams.create(0.0))
    np.testing.assert_array_equal(greedy, np.zeros((3, 2, 11), np.float32))


def test_gumbel_argmax_samples_the_distribution():
    probs = np.asarray([0.5, 0.3, 0.0, 0.15, 0.05])
    count = 20000
    positions = jnp.arange(count, dtype=jnp.int32)[None]
    noise = gumbel_noise(jax.random.key(4)[None], positions, 5, SamplingParams.create())
    with np.errstate(divide="ignore"):
        log_probs = jnp.broadcast_to(jnp.asarray(np.log(probs), jnp.float32), noise.shape)
    tokens = np.bincount(np.asarray(gumbel_argmax(log_probs, noise)).ravel(), minlength=5)
    assert tokens[2] == 0
    assert stats.chisquare(tokens[probs > 0], count * probs[probs > 0]).pvalue > 1e-3


@pytest.mark.parametrize("vocab", [1, 50, 128, 512])
def test_first_argmax_breaks_ties_to_the_lowest_id(vocab):
    rng = np.random.default_rng(vocab)
    scores = rng.integers(0, 4, (2, 30, vocab)).astype(np.float32)
    scores[0, 0] = -np.inf
    np.testing.assert_array_equal(first_argmax(jnp.asarray(scores)), scores.argmax(-1))
    assert first_argmax(jnp.asarray(scores)).dtype == jnp.int32


def test_top_children_best_first_ties_to_the_lowest_id():
    scores = np.random.default_rng(0).integers(0, 5, (2, 3, 40)).astype(np.float32)
    values, ids = top_children(jnp.asarray(scores), 6)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :6]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, -1))
    for k in (0, 41):
        with pytest.raises(ValueError, match="give 1 to 40"):
            top_children(jnp.asarray(scores), k)


def test_draft_noise_draws_without_replacement():
    q = np.asarray([0.5, 0.25, 0.2, 0.05])
    count = 20000
    keys = jax.random.split(jax.random.key(1), count)
    zero = jnp.zeros(count, jnp.int32)
    noise = draft_noise(keys, zero, zero, np.asarray([3]), 4, SamplingParams.create())
    _, drawn = top_children(jnp.asarray(np.log(q), jnp.float32)[None, None] + noise, 2)
    pairs = np.bincount(np.asarray(drawn[:, 0] @ jnp.asarray([4, 1], jnp.int32)), minlength=16).reshape(4, 4)
    expected = q[:, None] * q[None, :] / (1 - q[:, None])
    np.fill_diagonal(expected, 0)
    assert np.trace(pairs) == 0
    off = ~np.eye(4, dtype=bool)
    assert stats.chisquare(pairs[off], count * expected[off]).pvalue > 1e-3


def test_streams_differ_by_purpose_position_round_and_node():
    keys, sampled = jax.random.key(0)[None], SamplingParams.create()

    def at(number):
        return jnp.asarray([number], jnp.int32)

    rows = [np.asarray(gumbel_noise(keys, at(i)[None], 8, sampled))[0, 0] for i in range(3)]
    rows += list(np.asarray(draft_noise(keys, at(0), at(0), np.arange(3), 8, sampled))[0])
    rows += [np.asarray(draft_noise(keys, at(1), at(0), np.arange(1), 8, sampled))[0, 0]]
    rows += [np.asarray(draft_noise(keys, at(0), at(1), np.arange(1), 8, sampled))[0, 0]]
    rows += [np.asarray(residual_noise(keys, at(i), at(j), 8))[0] for i in range(2) for j in range(2)]
    rows += [
        -np.log(-np.log(acceptance_uniforms(keys, at(i), at(j), 8)[0])) for i in range(2) for j in range(2)
    ]
    values = np.concatenate(rows)
    assert len(np.unique(values)) == values.size
    assert not draft_noise(keys, at(0), at(0), np.arange(3), 8, SamplingParams.create(0.0)).any()
