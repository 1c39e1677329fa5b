"""The TPU kernel against the products that it replaces: interpreted, and lowered."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from lantern_jax.kernels.tpu_attention import WIDTH, attend_kernel, fits
from lantern_jax.models import attention
from tests.kernels.attention_arguments import arguments, assert_same
from tests.lowering import lower, mesh

by_products = jax.jit(attention._by_products)
interpreted = jax.jit(partial(attend_kernel, interpret=True))


@pytest.mark.parametrize(
    ("rows", "nodes", "slots"),
    [
        ((2, 1), 1, (70,)),
        ((1, 2), 26, (130, 5, 0)),
        pytest.param((2, 1), 5, (9, 0), marks=pytest.mark.exhaustive),
        pytest.param((1, 1), 64, (), marks=pytest.mark.exhaustive),
    ],
)
def test_it_equals_attention_by_products(rows, nodes, slots):
    """Two heads of 64 share a tile; what lies past the last position does not matter."""
    given = arguments(rows, nodes, slots, jnp.bfloat16, heads=4, width=WIDTH)
    assert fits(given[0])
    found, expected = interpreted(*given), by_products(*given)
    assert_same(found, expected, 2e-2)
    assert_same(found[1], expected[1], 0)


def test_every_query_has_its_own_mask():
    """A window over the cache, and a tree whose nodes see their ancestors alone."""
    qkv, rotary, _, past, _ = arguments((1, 2), 6, (20,), jnp.bfloat16, heads=2, width=WIDTH)
    mask = jnp.asarray(np.random.default_rng(5).random((1, 2, 6, 20)) < 0.4)
    tree = jnp.asarray((np.random.default_rng(6).random((1, 2, 6, 6)) < 0.5) | np.eye(6, dtype=bool))
    given = qkv, rotary, tree, past, (mask,)
    found = interpreted(*given)
    assert_same(found, by_products(*given), 2e-2)
    other = interpreted(qkv, rotary, tree, past, (jnp.repeat(mask[:, :, :1], 6, axis=2),))
    assert np.abs(np.asarray(found[0] - other[0], np.float32)).max() > 0.1


def test_programs_share_the_heads_of_a_row(monkeypatch):
    """A program takes as many heads as there is room for their caches, in whole tiles."""
    given = arguments((2, 1), 5, (40,), jnp.bfloat16, heads=12, width=WIDTH)
    whole = interpreted(*given)
    for room in (1, 4 * WIDTH * 40 * 5):
        monkeypatch.setattr("lantern_jax.kernels.tpu_attention._MOST_BYTES", room)
        # A new function each time: the room is read when it is traced.
        within = jax.jit(lambda *given: attend_kernel(*given, interpret=True))
        assert_same(within(*given), whole, 0)


def test_which_shapes_and_dtypes_fit():
    def shaped(nodes, heads, width, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct((2, 1, nodes, 3, heads, width), dtype)

    assert fits(shaped(64, 20, 64)) and fits(shaped(1, 2, 64))
    assert not fits(shaped(65, 2, 64)) and not fits(shaped(0, 2, 64)), "nodes"
    assert not fits(shaped(5, 3, 64)) and not fits(shaped(5, 4, 128)), "tiles"
    assert not fits(shaped(5, 2, 64, jnp.float32)) and not fits(shaped(5, 2, 64, jnp.float16)), "types"


def test_a_tpu_gets_the_kernel_and_others_do_not():
    given = arguments((2, 1), 5, (70,), jnp.bfloat16, heads=2, width=WIDTH)
    texts = {
        name: lower(attention.rotate_and_attend, *given, platform=name).as_text()
        for name in ("cuda", "cpu", "tpu")
    }
    assert [text.count("tpu_custom_call") for text in texts.values()] == [0, 0, 1]


def test_it_is_lowered_for_pictures_spread_over_chips():
    given = arguments((2, 2), 5, (70,), jnp.bfloat16, heads=2, width=WIDTH)
    rows, whole = PartitionSpec(None, "data"), PartitionSpec()
    spread = jax.shard_map(
        attention.rotate_and_attend,
        mesh=mesh("tpu", data=2),
        in_specs=(rows, rows, whole, rows, rows),
        out_specs=rows,
        check_vma=False,
    )
    assert lower(spread, *given, platform="tpu").as_text().count("tpu_custom_call") == 1


def test_derivatives_are_those_of_products():
    qkv, *others = arguments((1, 1), 5, (10,), jnp.bfloat16, heads=2, width=WIDTH)

    def total(attention, qkv):
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(attention(qkv, *others)))

    found, expected = (
        jax.jit(jax.grad(lambda qkv, attention=attention: total(attention, qkv)))(qkv)
        for attention in (attention._by_tpu_kernel, attention._by_products)
    )
    assert_same(found, expected, 0)
