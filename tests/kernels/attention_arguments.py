"""Arguments of attention for the tests of its kernels."""

import jax
import jax.numpy as jnp
import numpy as np

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
