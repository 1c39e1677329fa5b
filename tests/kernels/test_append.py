"""One kernel that writes rows of all layers' blocks into their caches: interpreted, and lowered for GPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding import cache as kv_cache
from lantern_jax.kernels import append
from lantern_jax.kernels.append import append_kernel
from tests.lowering import lower


def arrays(count: int, slots: int, dtype=jnp.float32, seed: int = 0):
    numbers = np.random.default_rng(seed)
    return [jnp.asarray(numbers.standard_normal((4, 3, slots, 8)).astype(dtype)) for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "path", "most"),
    [(4, [[0], [3], [1], [0]], 150), (5, [[0, 2, 5], [0, 1, 1], [4, 5, 6], [0, 0, 0]], 2)],
)
def test_the_path_and_nothing_else_is_written_from_the_start_on(count, path, most, monkeypatch):
    monkeypatch.setattr(append, "_MOST_ARRAYS", most)
    monkeypatch.setattr(append, "_MOST_ENTRIES", 1)
    caches, blocks, start = arrays(count, 20), arrays(count, 7, jnp.bfloat16, 1), np.array([4, 9, 0, 17])
    path = np.array(path, np.int32)
    found = append_kernel(caches, blocks, jnp.asarray(path), jnp.asarray(start, jnp.int32), interpret=True)
    assert len(found) == count
    for cache, block, new in zip(caches, blocks, found, strict=True):
        expected = np.array(cache)
        for row in range(4):
            slots = slice(start[row], start[row] + path.shape[1])
            expected[row, :, slots] = np.asarray(block, np.float32)[row][:, path[row]]
        np.testing.assert_array_equal(new, expected)


def test_it_commits_the_same_as_writing_layer_by_layer(monkeypatch):
    """Guidance rows share their sequence's path and start."""
    monkeypatch.setattr(kv_cache, "append_kernel", lambda *given: append_kernel(*given, interpret=True))

    def pairs(slots, seed):
        made = [array.reshape(2, 2, 3, slots, 8) for array in arrays(6, slots, seed=seed)]
        return tuple(zip(made[::2], made[1::2], strict=True))

    given = (
        pairs(12, 2),
        pairs(5, 3),
        jnp.asarray([[0, 4], [2, 3]], jnp.int32),
        jnp.asarray([3, 7], jnp.int32),
    )
    one, each = kv_cache._append_to_all(*given), kv_cache._append_to_each(*given)
    assert jax.tree.structure(one) == jax.tree.structure(each)
    for new, other in zip(jax.tree.leaves(one), jax.tree.leaves(each), strict=True):
        np.testing.assert_array_equal(new, other)


def test_a_gpu_writes_all_layers_with_one_kernel():
    layers = tuple(tuple(array.reshape(2, 2, 3, 12, 8) for array in arrays(2, 12, seed=i)) for i in range(5))
    block = jax.tree.map(lambda array: array[..., :4, :], layers)
    cache = kv_cache.KVCache(layers, jnp.ones((2, 2, 1), bool), jnp.zeros(2, jnp.int32), None)
    path, count = jnp.zeros((2, 3), jnp.int32), jnp.ones(2, jnp.int32)
    given = (kv_cache.commit, cache, block, path, count)
    text = lower(*given, platform="cuda").as_text()
    assert text.count("xla.gpu.triton") == 1 and "dynamic_update_slice" not in text
    assert "xla.gpu.triton" not in lower(*given, platform="cpu").as_text()
