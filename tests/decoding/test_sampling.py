"""The sampling distribution against a sorting reference, and the random streams."""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lantern_jax.decoding.sampling import (
    FILTERS,
    SamplingParams,
    acceptance_uniforms,
    apply_guidance,
    draft_noise,
    first_argmax,
    gumbel_noise,
    keep_uniforms,
    process_logits,
    residual_noise,
    sequence_keys,
    top_children,
    window_noise,
)
from tests.lowering import lower
from tests.refused import refused

from .enumerated_chain import filtered

process = jax.jit(process_logits)


def traced_params(temperature, top_k, top_p, filters=FILTERS, greedy=False, min_p=0.0):
    """Makes parameters of any values for a program with exactly these filters."""
    values = jnp.float32(temperature), jnp.int32(top_k), jnp.float32(top_p), jnp.float32(min_p)
    return SamplingParams(*values, greedy=greedy, filters=filters)


@cache
def process_as_on(platform, shape, filters=FILTERS):
    """Compiles another platform's program for this one."""
    params = traced_params(1, 0, 1, filters)
    return lower(process_logits, jnp.zeros(shape, jnp.float32), params, platform=platform).compile()


LOGITS = 3 * np.random.default_rng(3).standard_normal((2, 3, 40)).astype(np.float32)
KINDS = {
    "plain": LOGITS,
    "ties": np.round(LOGITS),
    "masked": np.where(np.random.default_rng(4).random(LOGITS.shape) < 0.7, np.float32(-np.inf), LOGITS),
    "signs": LOGITS - np.float32(20) * np.arange(3, dtype=np.float32)[:, None],
    "equal": np.broadcast_to(np.asarray([-1e30, 0, 2.5], np.float32)[:, None], LOGITS.shape),
    "one": np.where(np.arange(40) == 7, LOGITS, np.float32(-np.inf)),
    "tiny": LOGITS * np.float32(1e-37),
    "huge": LOGITS * np.float32(1e36),
}


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_filters_agree_with_sorting(platform, kind, temperature, assert_close):
    logits = KINDS[kind]
    program = process_as_on(platform, logits.shape)
    with np.errstate(over="ignore"):
        scaled = logits / np.float32(temperature)
    for top_k in (0, 1, 5, 39, 40, 41):
        for top_p, min_p in (
            (1.0, 0.0),
            (0.9, 0.0),
            (0.33, 0.0),
            (1e-6, 0.0),
            (1.0, 0.05),
            (0.9, 0.4),
            (1.0, 1.0),
        ):
            actual = program(logits, traced_params(temperature, top_k, top_p, min_p=min_p))
            expected = filtered(scaled, 1.0, top_k, top_p, min_p)
            np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected))
            assert_close(np.exp(actual), np.exp(expected), 1e-5)


@st.composite
def rows(draw):
    """Draws a row with many ties and both signs, and how many of its codes to keep."""
    finite = st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False)
    some = draw(st.lists(finite | st.just(float("-inf")), min_size=1, max_size=12))
    row = np.asarray(draw(st.lists(st.sampled_from(some), min_size=12, max_size=12)), np.float32)
    if np.isneginf(row).all():
        row[draw(st.integers(0, 11))] = draw(finite)
    return row, draw(st.integers(1, 12))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@settings(deadline=None, max_examples=100, derandomize=True)
@given(rows())
def test_any_row_keeps_the_codes_not_below_its_kth_value(platform, case):
    row, top_k = case
    program = process_as_on(platform, (1, 12), ("top_k",))
    kept = np.isfinite(program(row[None], traced_params(1, top_k, 1, ("top_k",)))[0])
    np.testing.assert_array_equal(kept, (row >= np.sort(row)[-top_k]) & np.isfinite(row))


def test_a_filter_that_is_left_out_is_not_applied():
    for name, top_k, top_p in (("top_k", 3, 1.0), ("top_p", 0, 0.5)):
        made = process(LOGITS, traced_params(1, 3, 0.5, (name,)))
        np.testing.assert_array_equal(made, process(LOGITS, SamplingParams.create(1, top_k, top_p)))
    made = process(LOGITS, traced_params(1, 3, 0.5, ("min_p",), min_p=0.3))
    np.testing.assert_array_equal(made, process(LOGITS, SamplingParams.create(min_p=0.3)))
    with pytest.raises(ValueError, match="topk"):
        process_logits(LOGITS, traced_params(1, 3, 0.5, ("topk",)))


def test_greedy_is_the_plain_softmax_and_nan_is_passed_on():
    odd = jnp.asarray([[0.0, jnp.nan, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(jnp.isnan(process(odd, traced_params(1, 2, 0.9))).all(1), [True, False])
    for params in (SamplingParams.create(0, 3, 0.5), traced_params(0.3, 3, 0.5, greedy=True)):
        np.testing.assert_array_equal(process(KINDS["masked"], params), jax.nn.log_softmax(KINDS["masked"]))


def test_which_filters_run_is_static_and_values_are_traced():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((1, 3, 1024)), jnp.float32)
    for filters, cases in (
        ((), [(0.0, 0, 1.0), (0.0, 7, 0.9)]), ((), [(1.0, 0, 1.0), (0.7, 1024, 1.0), (2.0, 0, 1.0)]),
        (("top_k",), [(1.0, 7, 1.0), (0.7, 1023, 1.0)]), (("top_p",), [(1.0, 0, 0.9), (0.7, 1024, 0.1)]),
        (("top_k", "top_p"), [(1.0, 7, 0.9), (0.7, 100, 0.1)]),
        (("min_p",), [(1.0, 0, 1.0, None, 0.1), (0.7, 0, 1.0, None, 0.3)]),
    ):  # fmt: skip
        chex.clear_trace_counter()
        counted = jax.jit(chex.assert_max_traces(process_logits, n=1))
        for values in cases:
            params = (
                SamplingParams.create(*values) if len(values) > 3 else SamplingParams.create(*values, 1024)
            )
            assert params.filters == filters and params.greedy == (not values[0])
            counted(logits, params)
    assert SamplingParams.create(top_k=1024).filters == ("top_k",)
    with refused("top_k 11 is more than the 10 codes"):
        SamplingParams.create(top_k=11, vocab_size=10)


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
    positions = jnp.asarray([[0, 1], [5, 6], [0, 9]], jnp.int32)
    noise = gumbel_noise(keys, positions, 11)
    alone = gumbel_noise(keys[1:2], jnp.asarray([[6]], jnp.int32), 11)
    np.testing.assert_array_equal(alone[0, 0], noise[1, 1])
    assert not (np.asarray(noise[0, 0]) == np.asarray(noise[2, 0])).any()


def noise_of(stream, count):
    keys, zero = jax.random.key(7)[None], jnp.zeros(1, jnp.int32)
    if stream == "shared":
        return gumbel_noise(keys, zero[None], count).ravel()
    if stream == "draft":
        return draft_noise(keys, zero, zero, np.zeros(1, int), count).ravel()
    return residual_noise(keys, zero, zero, count).ravel()


@pytest.mark.parametrize("stream", ["shared", "draft", "residual"])
def test_noise_is_gumbel_and_fine_in_its_upper_tail(stream):
    from scipy import stats  # Importing it takes a second of every process.

    noise = np.asarray(noise_of(stream, 2**20), np.float64)
    assert stats.kstest(noise[: 2**16], stats.gumbel_r.cdf).pvalue > 1e-6
    # exp(-g) is exponential. Made from 23 random bits, its small values would be whole multiples of 2**-23.
    small = np.sort(np.exp(-noise))[:500] * 2**23
    assert small.max() < 2**14
    assert stats.kstest(small % 1, "uniform").pvalue > 1e-6


def test_first_argmax_breaks_ties_to_the_lowest_id():
    for vocab in (1, 50, 128, 512):
        scores = np.random.default_rng(vocab).integers(0, 4, (2, 30, vocab)).astype(np.float32)
        scores[0, 0] = -np.inf
        found = first_argmax(jnp.asarray(scores))
        np.testing.assert_array_equal(found, scores.argmax(-1))
        assert found.dtype == jnp.int32


def test_top_children_come_best_first_with_ties_to_the_lowest_id():
    scores = np.random.default_rng(0).integers(0, 5, (2, 3, 40)).astype(np.float32)
    values, ids = top_children(jnp.asarray(scores), 6)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :6]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, -1))
    for k in (0, 41):
        with pytest.raises(ValueError, match="give 1 to 40"):
            top_children(jnp.asarray(scores), k)


@pytest.mark.parametrize(
    "draw",
    [
        lambda keys, zero: gumbel_noise(keys, zero[None], 8),
        lambda keys, zero: window_noise(keys, zero[None], 8),
        lambda keys, zero: draft_noise(keys, zero, zero, np.zeros(1, np.int32), 8),
        lambda keys, zero: residual_noise(keys, zero, zero, 8),
        lambda keys, zero: acceptance_uniforms(keys, zero, zero, 3),
        lambda keys, zero: keep_uniforms(keys, zero, zero, 3),
    ],
)
def test_keys_whose_numbers_depend_on_the_batch_are_refused(draw):
    with refused(r"generator 'rbg'.*impl='threefry2x32'"):
        draw(jax.random.split(jax.random.key(0, impl="rbg"), 1), jnp.zeros(1, jnp.int32))


def test_sequence_keys_are_threefry_under_any_jax_default():
    expected = [jax.random.fold_in(jax.random.key(seed), number) for seed, number in ((7, 2), (7, 3), (4, 2))]
    with jax.default_prng_impl("rbg"):
        found = sequence_keys(7, [2, 3]), sequence_keys([4], [2])
    chex.assert_trees_all_equal(
        *(jax.random.key_data(keys) for keys in (jnp.stack(expected), jnp.concatenate(found)))
    )


def test_streams_differ_by_purpose_position_round_and_node():
    keys = jax.random.key(0)[None]

    def at(number):
        return jnp.asarray([number], jnp.int32)

    rows = [gumbel_noise(keys, at(i)[None], 8) for i in range(3)]
    rows += [
        draft_noise(keys, at(i), at(j), np.arange(n), 8) for i, j, n in ((0, 0, 3), (1, 0, 1), (0, 1, 1))
    ]
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows.append(residual_noise(keys, at(i), at(j), 8))
        rows += [
            -np.log(-np.log(draw(keys, at(i), at(j), 8))) for draw in (acceptance_uniforms, keep_uniforms)
        ]
    rows.append(window_noise(keys, jnp.arange(3, dtype=jnp.int32)[None], 8))
    values = np.concatenate([np.ravel(row) for row in rows])
    assert len(np.unique(values)) == values.size == 8 * (3 + 5 + 12 + 3)


def test_draft_noise_of_traced_nodes_is_that_of_static_ones():
    keys, rounds = jax.random.split(jax.random.key(0), 2), jnp.asarray([0, 3], jnp.int32)
    static = draft_noise(keys, rounds, rounds, np.asarray([4, 1, 7]), 8)
    nodes = jnp.asarray([[4, 1, 7], [7, 4, 1]], jnp.int32)
    traced = jax.jit(partial(draft_noise, vocab_size=8))(keys, rounds, rounds, nodes)
    np.testing.assert_array_equal(traced[0], static[0])
    np.testing.assert_array_equal(traced[1], static[1][jnp.asarray([2, 0, 1])])
