"""GPU attention against JAX's own operations: the kernel, interpreted and lowered, and scores joined in one array."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding import cache
from lantern_jax.kernels import joined
from lantern_jax.kernels.attention import attend_kernel
from lantern_jax.kernels.joined import attend_joined
from lantern_jax.kernels.ways import traced_on
from lantern_jax.models import attention as model_attention
from tests.cases import exhaustive
from tests.lowering import lower

HEADS, WIDTH = 3, 16


def normal(seed: int, *shape: int, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def arguments(
    rows: tuple[int, ...],
    nodes: int,
    slots: tuple[int, ...],
    dtype=jnp.float32,
    seen=None,
    heads=HEADS,
    width=WIDTH,
):
    """Returns arguments of ``rotate_and_attend``: a causal block after a past of which rows see different lengths."""
    qkv = normal(0, *rows, nodes, 3, heads, width, dtype=dtype)
    # One for all guidance rows, as models give it.
    rotary = normal(1, 1, *rows[1:], nodes, width // 2, 2)
    block_mask = jnp.asarray(np.tril(np.ones((nodes, nodes), bool)))[None, None]
    past = tuple(
        tuple(normal(2 + 2 * i + j, *rows, heads, count, width, dtype=dtype) for j in range(2))
        for i, count in enumerate(slots)
    )
    lengths = np.arange(np.prod(rows)).reshape(rows)
    masks = tuple(
        jnp.asarray(
            np.arange(count)[None] < (seen or count) - np.minimum(lengths[..., None, None], count // 2)
        )
        for count in slots
    )
    return qkv, rotary, block_mask, past, masks


def assert_same(found, expected, tolerance: float):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        one, other = (np.asarray(array, np.float32) for array in (one, other))
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance)


by_products = jax.jit(model_attention._by_products)
interpreted = jax.jit(partial(attend_kernel, interpret=True))
BLOCKS = pytest.mark.parametrize(
    ("rows", "nodes", "slots"),
    [
        ((2, 1), 1, (70,)),
        ((1, 2), 18, (130, 5, 0)),
        ((1, 1), 16, ()),
        exhaustive((1, 2), 5, (64, 3)),
        exhaustive((2, 2), 26, (130, 5, 8)),
    ],
)


@BLOCKS
def test_it_equals_attention_by_products(rows, nodes, slots):
    given = arguments(rows, nodes, slots)
    assert_same(interpreted(*given), by_products(*given), 2e-6)


@BLOCKS
def test_joined_scores_equal_attention_by_products(rows, nodes, slots, monkeypatch):
    given = arguments(rows, nodes, slots)
    expected = by_products(*given)
    assert_same(attend_joined(*given), expected, 2e-6)
    monkeypatch.setattr(joined, "_MOST_SUMMED", 0)
    assert_same(jax.jit(attend_joined.__wrapped__)(*given), expected, 2e-6)


def test_it_is_close_in_bfloat16():
    given = arguments((2, 1), 9, (70,), jnp.bfloat16)
    assert_same(interpreted(*given), by_products(*given), 2e-2)


@pytest.mark.parametrize("attention", [interpreted, attend_joined])
def test_every_query_has_its_own_mask(attention):
    """Queries see different slots of one place of the past: a window over the cache, or a drafter's nodes."""
    qkv, rotary, block_mask, past, _ = arguments((1, 2), 4, (20,))
    mask = jnp.asarray(np.random.default_rng(5).random((1, 2, 4, 20)) < 0.4)
    given = qkv, rotary, block_mask, past, (mask,)
    found = attention(*given)
    assert_same(found, by_products(*given), 2e-6)
    other = attention(qkv, rotary, block_mask, past, (jnp.repeat(mask[:, :, :1], 4, axis=2),))
    assert np.abs(found[0] - other[0]).max() > 0.1


def test_slots_that_no_query_sees_are_not_read():
    """Slots past the last block in use may hold anything: early tokens do not pay for later ones."""
    qkv, rotary, block_mask, ((keys, values),), masks = arguments((2, 1), 3, (200,), seen=40)
    spoilt = tuple(array.at[..., 64:, :].set(jnp.nan) for array in (keys, values))
    found = interpreted(qkv, rotary, block_mask, (spoilt,), masks)
    assert_same(found, by_products(qkv, rotary, block_mask, ((keys, values),), masks), 2e-6)


def test_a_gpu_gets_the_kernel_and_a_cpu_does_not():
    given = arguments((2, 1), 5, (70,), jnp.bfloat16)
    texts = {
        name: lower(model_attention.rotate_and_attend, *given, platform=name).as_text()
        for name in ("cuda", "cpu", "tpu")
    }
    assert [text.count("xla.gpu.triton") for text in texts.values()] == [1, 0, 0]


@pytest.mark.parametrize(("attention", "dtype", "tolerance"), [
    (model_attention._by_kernel, jnp.bfloat16, 0), (attend_joined, jnp.float32, 1e-5),
    # The kernel's branch is traced too, as by a caller whose program may be lowered for any device.
    (model_attention.rotate_and_attend, jnp.bfloat16, 0),
])  # fmt: skip
def test_derivatives_are_those_of_products(attention, dtype, tolerance):
    qkv, *others = arguments((1, 1), 5, (10,), dtype)

    def total(attention, qkv):
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(attention(qkv, *others)))

    with traced_on(None):
        found, expected = (
            jax.jit(jax.grad(partial(total, each)))(qkv) for each in (attention, model_attention._by_products)
        )
    assert_same(found, expected, tolerance)


@pytest.mark.parametrize(("rows", "nodes", "slots", "dtype"), [
    ((2, 1), 1, (70,), jnp.float32), ((1, 2), 4, (64, 3), jnp.bfloat16), ((1, 1), 18, (9, 0), jnp.float32),
    ((2, 1), 8, (), jnp.float32),
])  # fmt: skip
def test_the_tpu_way_equals_attention_by_products(rows, nodes, slots, dtype):
    """Rows added to make products tall change nothing, nor does rotating by a permutation."""
    given = arguments(rows, nodes, slots, dtype)
    tolerance = {jnp.float32: 2e-6, jnp.bfloat16: 2e-2}[dtype]
    assert_same(jax.jit(model_attention._by_tall_products)(*given), by_products(*given), tolerance)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_with_a_permutation_rotates(dtype):
    x, rotary = normal(0, 2, 1, HEADS, 5, WIDTH, dtype=dtype), normal(1, 2, 1, 5, WIDTH // 2, 2)
    assert_same(model_attention.rotate_by_product(x, rotary), model_attention.rotate(x, rotary), 2e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("nodes", [1, 5])
def test_a_product_chooses_rows_bit_for_bit(nodes, dtype):
    rows = normal(0, 2, 3, HEADS, nodes, WIDTH, dtype=dtype) * 1e3
    path = jnp.asarray(np.random.default_rng(1).integers(0, nodes, (3, 4 if nodes > 1 else 1)), jnp.int32)
    assert_same(cache._choose_by_product(rows, path), cache._choose(rows, path), 0)
