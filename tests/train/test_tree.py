"""Ranks against real decoding, and the trees that follow from them."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from lantern_jax import DraftTree
from lantern_jax.apps.measuring.subject import Subject, checkpoint_subject, sample_prompts
from lantern_jax.draftings import Tree
from tests.cases import exhaustive
from tests.tiny_checkpoint import TOKENS, altered_pipeline, drafters
from train.ranks import collect_ranks, rank_of
from train.tree import expected_tokens, grow_tree, path_counts, rank_probabilities

PICTURES, SEED = 6, 3
# Bushy, deep, and with gaps in its ranks.
TREE = DraftTree.from_paths([(0,), (1,), (3,), (0, 0), (0, 2), (1, 0), (3, 0), (0, 0, 0), (3, 0, 1)])


@cache
def subject() -> Subject:
    pipeline = altered_pipeline(drafters=drafters())
    return checkpoint_subject("tiny", pipeline, sample_prompts(pipeline.checkpoint, 4), SEED)


def settings(**options):
    return subject().settings(options)


@cache
def plain(temperature: float):
    job = subject().job(settings(method="ar", temperature=temperature))
    return subject().decode(job, 0, PICTURES, PICTURES)


def rounds_of(ranks) -> int:
    """Returns the rounds of a picture: each accepts the longest path of the tree that its root's ranks begin with."""
    position, rounds = 1, 0
    while position < TOKENS:
        paths = [tuple(ranks[position, :depth]) for depth in range(1, 5)]
        position += 1 + sum(path in TREE.paths for path in paths)
        rounds += 1
    return rounds


RARE = [exhaustive(kind, 1.0) for kind in drafters()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "temperature"), [("eagle", 0.0), *RARE])
def test_rounds_from_ranks_match_real_decoding(kind, temperature):
    """With every kind of drafter, exactly, picture by picture."""
    known, plainly = plain(temperature), settings(method="ar", temperature=temperature)
    ranks = collect_ranks(subject(), kind, plainly, known.tokens, batch=4, depth=4)
    assert ranks.shape == (PICTURES, TOKENS, 4)
    # Every position but the first is a root; there is nothing past the picture's end.
    ahead = np.arange(TOKENS)[:, None] + np.arange(4)[None]
    none = np.broadcast_to((ahead >= TOKENS) | (ahead[:, :1] == 0), ranks.shape)
    np.testing.assert_array_equal(ranks == -1, none)
    drafted = settings(drafting=Tree(drafter=kind, tree=TREE), temperature=temperature)
    made = subject().decode(subject().job(drafted), 0, PICTURES, PICTURES)
    np.testing.assert_array_equal(made.tokens, known.tokens)
    np.testing.assert_array_equal([rounds_of(picture) for picture in ranks], made.rounds)
    assert made.rounds.min() < TOKENS - 1, "something is accepted"


def test_a_rank_counts_the_codes_before_it():
    scores = np.array([[0.0, 2.0, 1.0, 2.0]] * 4, np.float32)
    np.testing.assert_array_equal(rank_of(scores, np.arange(4, dtype=np.int32)), [3, 0, 2, 1])


def test_trees_take_the_most_frequent_paths():
    ranks = np.array([[0, 0, 1], [0, 0, 1], [0, 2, 0], [1, -1, -1], [0, 0, 99], [50, 0, 0]])
    counts = path_counts(ranks)
    assert counts == Counter(
        {(0,): 4, (0, 0): 3, (0, 0, 1): 2, (0, 0, 0): 2, (0, 2): 1, (0, 1): 1, (0, 2, 0): 1, (1,): 1}
    )
    assert grow_tree(counts, 4) == [(0,), (0, 0), (0, 0, 0), (0, 0, 1)]
    assert grow_tree(counts, 3, depth=2) == [(0,), (1,), (0, 0)]
    assert not DraftTree.from_paths(grow_tree(counts, 8)).has_rank_gaps
    with pytest.raises(ValueError, match="a tree of 9 nodes from 8 observed paths"):
        grow_tree(counts, 9)
    assert expected_tokens(counts, len(ranks), grow_tree(counts, 4)) == 1 + (4 + 3 + 2 + 2) / 6
    assert rank_probabilities(ranks)[0][:3] == [round(4 / 6, 4), round(1 / 6, 4), 0.0]
