"""Neighbour tables against a brute-force reference."""

import jax.numpy as jnp
import numpy as np
import pytest

from lantern_jax.decoding.neighbours import nearest_codes


def brute_force(codes, k):
    codes = np.asarray(codes, np.float64)
    squared = ((codes[:, None] - codes[None]) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    return np.argsort(squared, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize(("size", "k"), [(7, 6), (50, 10), (1500, 5)])
def test_neighbours_come_nearest_first_without_the_code_itself(size, k):
    """1500 codes take several blocks, the last one cut short."""
    codes = np.random.default_rng(0).standard_normal((size, 4)).astype(np.float32)
    table = nearest_codes(jnp.asarray(codes), k)
    assert table.dtype == jnp.int32
    np.testing.assert_array_equal(table, brute_force(codes, k))


def test_ties_go_to_the_lowest_id():
    codes = jnp.asarray([[0.0], [1.0], [0.0], [1.0], [0.0]])
    np.testing.assert_array_equal(
        nearest_codes(codes, 4), [[2, 4, 1, 3], [3, 0, 2, 4], [0, 4, 1, 3], [1, 0, 2, 4], [0, 2, 1, 3]]
    )


def test_normalize_compares_directions():
    codes = jnp.asarray([[1.0, 0.0], [1.1, 1.0], [100.0, 1.0], [0.0, 0.0]])
    assert nearest_codes(codes, 1)[0, 0] == 3
    assert nearest_codes(codes, 1, normalize=True)[0, 0] == 2


def test_bad_arguments_are_refused():
    assert nearest_codes(jnp.ones((3, 2)), 0).shape == (3, 0)
    for k in (-1, 3, 100):
        with pytest.raises(ValueError, match="do not exist among 3 codes"):
            nearest_codes(jnp.ones((3, 2)), k)
    with pytest.raises(ValueError, match="codes x channels"):
        nearest_codes(jnp.ones(3), 1)
