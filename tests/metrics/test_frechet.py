"""The Fréchet distance, against SciPy and closed forms in float64."""

import numpy as np
import pytest
import scipy.linalg

from lantern_jax.apps.metrics.distances import bootstrap_draws, interval
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance


def features(seed, count, width):
    """Returns features that are correlated, far from zero, and of very different spreads, as a network's are."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(width, width)) * np.logspace(0, -2, width)
    return generator.normal(size=(count, width)) @ mixing + generator.normal(2, 1, width)


def published(left, right):
    """Returns the distance as the usual programs compute it, with a general matrix square root."""
    means, spreads = zip(*((x.mean(axis=0), np.cov(x, rowvar=False)) for x in (left, right)), strict=True)
    root = scipy.linalg.sqrtm(spreads[0] @ spreads[1])
    return np.sum((means[0] - means[1]) ** 2) + np.trace(spreads[0] + spreads[1] - 2 * root.real)


def test_one_picture_has_no_covariance():
    with pytest.raises(ValueError, match="at least 2"):
        Normal.of_features(np.zeros((1, 2)))


@pytest.mark.parametrize("width", [2, 16, 64])
def test_the_frechet_distance_matches_scipy(width):
    left, right = features(3, 300, width), features(4, 200, width)
    expected = published(left, right)
    assert frechet_distance(Normal.of_features(left), Normal.of_features(right)) == pytest.approx(
        expected, rel=1e-6
    )


def test_the_frechet_distance_with_fewer_pictures_than_features():
    """With centred features as roots of the covariances: the nuclear norm of their product, which is small."""
    left, right = features(5, 9, 40), features(6, 12, 40)
    roots = [(x - x.mean(axis=0)) / np.sqrt(len(x) - 1) for x in (left, right)]
    expected = np.sum((left.mean(axis=0) - right.mean(axis=0)) ** 2)
    expected += sum(np.sum(root**2) for root in roots)
    expected -= 2 * np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False).sum()
    quick = [Normal.of_features(x) for x in (left, right)]
    whole = [Normal.of_covariance(x.mean(axis=0), np.cov(x, rowvar=False)) for x in (left, right)]
    assert frechet_distance(*whole) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(quick[0], whole[1]) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(*quick) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(whole[0], whole[0]) == pytest.approx(0, abs=1e-6 * expected)


def test_the_interval_of_a_mean_is_the_normal_distributions():
    draws = bootstrap_draws(30, 400, seed=1)
    assert draws.shape == (401, 30) and (draws[0] == np.arange(30)).all()
    assert draws.min() == 0 and draws.max() == 29
    np.testing.assert_array_equal(bootstrap_draws(30, 400, seed=1), draws)
    values = np.random.default_rng(0).normal(5, 2, 30)
    value, low, high = interval(values[draws].mean(axis=1))
    # For a mean: the normal distribution's interval.
    reach = 1.96 * values.std() / np.sqrt(30)
    assert value == values.mean()
    assert (value - low, high - value) == (pytest.approx(reach, rel=0.15), pytest.approx(reach, rel=0.15))
