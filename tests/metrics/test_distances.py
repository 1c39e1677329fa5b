"""Kernel distance, precision and recall, against loops over pairs."""

import itertools

import numpy as np
import pytest

from lantern_jax.apps.metrics import distances
from lantern_jax.apps.metrics.distances import kernel_distance, precision_recall
from lantern_jax.apps.metrics.frechet import Normal, frechet_distance
from tests.refused import refused_each


def normal(seed, count, width, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1, (count, width))


def literal_discrepancy(left, right):
    def kernel(x, y):
        return (x @ y / len(x) + 1) ** 3

    def within(points):
        pairs = itertools.permutations(range(len(points)), 2)
        return np.mean([kernel(points[i], points[j]) for i, j in pairs])

    return within(left) + within(right) - 2 * np.mean([kernel(x, y) for x in left for y in right])


def test_kernel_distance_of_whole_sets_is_that_of_their_pairs():
    left, right = normal(0, 13, 5), normal(1, 13, 5, 0.3)
    found = kernel_distance(left, right, subsets=3)
    assert (found.size, found.subsets) == (13, 3)
    assert found.mean == pytest.approx(literal_discrepancy(left, right), rel=1e-9)
    assert found.deviation == pytest.approx(0, abs=1e-12)


def test_numbers_match_torch_fidelity():
    """The numbers of its release 0.4.0 for these features, in float64; it draws the same subsets."""
    generator = np.random.RandomState(0)
    made = generator.standard_normal((60, 8)) @ generator.standard_normal((8, 8))
    real = 0.2 + generator.standard_normal((70, 8)) @ generator.standard_normal((8, 8))
    kernel = kernel_distance(made, real, subsets=20, size=40)
    assert kernel.mean == pytest.approx(35.626331693077816, rel=1e-6)
    assert kernel.deviation == pytest.approx(17.56426965131802, rel=1e-6)
    frechet = frechet_distance(Normal.of_features(made), Normal.of_features(real))
    assert frechet == pytest.approx(43.59239362234686, rel=1e-6)
    found = precision_recall(made, real)
    assert (found.precision, found.recall) == (19 / 60, 49 / 70)


def literal_precision_recall(made, real, k, strict):
    def distance(x, y):
        return np.sum((x - y) ** 2)

    def share(points, centres):
        apart = [[distance(x, y) for j, y in enumerate(centres) if j != i] for i, x in enumerate(centres)]
        balls = [(centre, sorted(row)[k - 1]) for centre, row in zip(centres, apart, strict=True)]
        within = np.less if strict else np.less_equal
        return np.mean([any(within(distance(x, at), radius) for at, radius in balls) for x in points])

    return share(made, real), share(real, made)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("k", [1, 3])
def test_precision_and_recall_match_loops(strict, k, monkeypatch):
    monkeypatch.setattr(distances, "_BLOCK", 100)
    answers = set()
    for seed in range(4):
        generator = np.random.default_rng(seed)
        made = generator.integers(0, 4, (23, 3)).astype(np.float32)
        real = generator.integers(0, 5, (31, 3)).astype(np.float32) + generator.integers(0, 2)
        found = precision_recall(made, real, k=k, strict=strict)
        assert (found.precision, found.recall) == literal_precision_recall(made, real, k, strict)
        answers |= {found.precision, found.recall}
    assert len(answers) > 3


def test_too_few_pictures_are_refused():
    refused_each({
        "1 and 5 picture": lambda: kernel_distance(normal(0, 1, 2), normal(0, 5, 2)),
        r"3 reference picture.*at least 4": lambda: precision_recall(normal(0, 9, 2), normal(0, 3, 2)),
    })  # fmt: skip
