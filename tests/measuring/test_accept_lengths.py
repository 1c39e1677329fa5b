"""Profiles of accepted lengths: what a mean and a list become on a tree of a given depth."""

import itertools
import math

import pytest

from lantern_jax.apps.measuring.accept_lengths import AcceptLengths, parse_accept_lengths
from tests.refused import refused


def tokens_a_pass(chances) -> float:
    return 1 + math.fsum(length * chance for length, chance in enumerate(chances))


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.63, 5.9, 6.0])
@pytest.mark.parametrize("depth", [5, 9, 46])
def test_a_mean_becomes_a_geometric_distribution_with_its_tail_on_the_depth(mean, depth):
    chances = AcceptLengths(mean=mean).over(depth)
    assert len(chances) == depth + 1 and math.isclose(math.fsum(chances), 1)
    assert tokens_a_pass(chances) == pytest.approx(mean, abs=1e-9)
    reached = [math.fsum(chances[length:]) for length in range(depth + 1)]
    if 1 < mean < depth + 1:
        ratios = [more / less for less, more in itertools.pairwise(reached)]
        assert ratios == pytest.approx([ratios[0]] * depth, rel=1e-6), "each token has the same chance"


def test_a_list_is_taken_as_it_is_and_folded_where_the_tree_ends():
    profile = parse_accept_lengths("0.4, 0.3, 0.2, 0.1")
    assert profile.over(3) == pytest.approx((0.4, 0.3, 0.2, 0.1))
    assert profile.over(5) == pytest.approx((0.4, 0.3, 0.2, 0.1, 0, 0))
    assert profile.over(1) == pytest.approx((0.4, 0.6))
    assert tokens_a_pass(profile.over(3)) == pytest.approx(2.0)


def test_a_profile_is_written_as_it_was_given():
    assert parse_accept_lengths("3.63") == AcceptLengths(mean=3.63)
    assert parse_accept_lengths("2.5").to_json() == 2.5
    assert parse_accept_lengths("0.25,0.75").to_json() == [0.25, 0.75]


BAD = ["", "many", "0.9", "-1", "nan", "0.5,0.6", "1.5,-0.5", "[3.63]", "lengths.json", "1e999"]


def test_what_is_no_profile_is_refused_in_one_line():
    for text in BAD:
        with refused("mean number of tokens per pass"):
            parse_accept_lengths(text)
    with refused(r"mean 3.63 need a tree of depth 3, and this one has 2"):
        AcceptLengths(mean=3.63).over(2)
