"""Trees from ranks, and the rounds they take: against real decoding, brute force and a bootstrap."""

from collections import Counter
from functools import cache

import jax
import numpy as np
import pytest

from lantern_jax import DraftTree
from lantern_jax.apps.measuring import paths
from lantern_jax.apps.measuring.ranks import collect_ranks, rank_of
from lantern_jax.apps.measuring.subject import Subject, checkpoint_subject, sample_prompts
from lantern_jax.decoding.stream import Stream
from lantern_jax.draftings import Tree
from tests.tiny_checkpoint import TOKENS, altered_pipeline, drafters
from train.tree import grow_tree

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
    return subject().decode(job, 1, PICTURES, PICTURES)


RARE = [pytest.param(kind, 1.0, marks=pytest.mark.exhaustive) for kind in drafters()]


@pytest.mark.parametrize(("kind", "temperature"), [("eagle", 0.0), *RARE])
def test_rounds_from_ranks_match_real_decoding(kind, temperature):
    """With every kind of drafter, exactly, picture by picture."""
    known, plainly = plain(temperature), settings(method="ar", temperature=temperature)
    ranks = collect_ranks(subject(), kind, plainly, known.tokens, first=1, batch=4, depth=4)
    assert ranks.shape == (PICTURES, TOKENS, 4)
    # Every position but the first is a root; there is nothing past the picture's end.
    ahead = np.arange(TOKENS)[:, None] + np.arange(4)[None]
    none = np.broadcast_to((ahead >= TOKENS) | (ahead[:, :1] == 0), ranks.shape)
    np.testing.assert_array_equal(ranks == -1, none)
    drafted = settings(drafting=Tree(drafter=kind, tree=TREE), temperature=temperature)
    made = subject().decode(subject().job(drafted), 1, PICTURES, PICTURES)
    np.testing.assert_array_equal(made.tokens, known.tokens)
    rounds = paths.rounds_of(ranks, TREE, Stream(subject().recipe.target()).run)
    np.testing.assert_array_equal(rounds, made.rounds)
    assert made.rounds.min() < TOKENS - 1, "something is accepted"


def test_a_rank_counts_the_codes_before_it():
    scores = np.array([[0.0, 2.0, 1.0, 2.0]] * 4, np.float32)
    np.testing.assert_array_equal(rank_of(scores, np.arange(4, dtype=np.int32)), [3, 0, 2, 1])


def test_trees_take_the_most_frequent_paths():
    ranks = np.array([[0, 0, 1], [0, 0, 1], [0, 2, 0], [1, -1, -1], [0, 0, 99], [50, 0, 0]])
    counts = paths.path_counts(ranks)
    assert counts == Counter(
        {(0,): 4, (0, 0): 3, (0, 0, 1): 2, (0, 0, 0): 2, (0, 2): 1, (0, 1): 1, (0, 2, 0): 1, (1,): 1}
    )
    assert grow_tree(counts, 4) == [(0,), (0, 0), (0, 0, 0), (0, 0, 1)]
    assert grow_tree(counts, 3, depth=2) == [(0,), (1,), (0, 0)]
    assert not DraftTree.from_paths(grow_tree(counts, 8)).has_rank_gaps
    with pytest.raises(ValueError, match="a tree of 9 nodes from 8 observed paths"):
        grow_tree(counts, 9)
    assert paths.expected_tokens(counts, len(ranks), grow_tree(counts, 4)) == 1 + (4 + 3 + 2 + 2) / 6
    assert paths.rank_probabilities(ranks)[0][:3] == [round(4 / 6, 4), round(1 / 6, 4), 0.0]


def test_rounds_jump_over_forced_tokens():
    """Eight tokens of which the fifth is forced: plain decoding takes six rounds, correct chains fewer."""
    run = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0])
    ranks = np.zeros((1, 8, 3), int)
    assert paths.rounds_of(ranks - 1, DraftTree.chain(3), run) == 6
    # Tokens 1 and 2; then 3, and 4 is forced; then 5 and 6; then 7.
    assert paths.rounds_of(ranks, DraftTree.chain(1), run) == 4
    # Tokens 1 to 4, whether 3 is the bonus or 4 is a node; then the rest.
    assert paths.rounds_of(ranks, DraftTree.chain(2), run) == 2
    assert paths.rounds_of(ranks, DraftTree.chain(3), run) == 2


def test_errors_match_a_bootstrap():
    rng = np.random.default_rng(0)
    rounds, tokens = rng.normal(95, 9, 24).round(), 255
    mean, error = paths.tokens_a_pass(rounds, tokens)
    drawn = rng.choice(rounds, (20_000, len(rounds)))
    assert mean == tokens / rounds.mean()
    # A bootstrap's variance is that of the sample, (n - 1) / n of the estimate's.
    assert np.std(tokens / drawn.mean(axis=1)) == pytest.approx(error * (23 / 24) ** 0.5, rel=0.03)
    for batch in (1, 2, 8):
        slow = rng.choice(rounds, (40_000, batch)).max(axis=1)
        assert paths.slowest(rounds, batch) == pytest.approx(slow.mean(), rel=2e-3)
    assert paths.slowest(rounds, 1) == pytest.approx(rounds.mean())


def test_pictures_have_their_own_prompts_and_numbers():
    """Picture i of a set is picture i of any other: decoded alone, in another batch, from another start."""
    job = subject().job(settings(method="ar"))
    part = subject().decode(job, 3, 2, 1)
    np.testing.assert_array_equal(part.tokens, plain(1.0).tokens[2:4])
    alone = [jax.tree.leaves(subject().rows(row, 1))[0][0].tolist() for row in (1, 2, 3)]
    assert jax.tree.leaves(subject().rows(5, 3))[0].tolist() == alone
