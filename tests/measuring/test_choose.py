"""What is chosen, on made-up costs and counts: against every possible tree, and when climbing a grid."""

import itertools

import numpy as np
import pytest

from lantern_jax.apps.measuring import choose
from lantern_jax.apps.measuring.choose import Budget, Guesses, best_trees, climb, tokens_a_second
from lantern_jax.apps.measuring.costs import Costs, Drafts, _rising, chains, draft_costs, filler
from lantern_jax.apps.measuring.paths import path_counts
from lantern_jax.decoding.tree import DraftTree

PASSES = {1: 4.0, 2: 5.0, 3: 5.5, 5: 6.1, 9: 8.6}


def every_tree(ranks: int, depth: int):
    """Yields all trees: the sets of paths that hold the parent of each of their paths."""
    nodes = [path for level in range(1, depth + 1) for path in itertools.product(range(ranks), repeat=level)]
    for chosen in itertools.product((False, True), repeat=len(nodes)):
        paths = {path for path, taken in zip(nodes, chosen, strict=True) if taken}
        if paths and all(len(path) == 1 or path[:-1] in paths for path in paths):
            yield DraftTree.from_paths(paths)


@pytest.mark.parametrize("level", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_chosen_tree_is_the_best_of_all(seed, level):
    """Where a level of drafting costs the same at any width."""
    rng = np.random.default_rng(seed)
    rows = np.minimum(rng.geometric(0.6, (200, 3)) - 1, 5)
    counts, total = path_counts(rows, max_rank=2), len(rows)
    costs = Costs(PASSES, drafts={"made up": Drafts(0.5, {1: level, 4: level})})

    def cost(nodes, expanded):
        return costs.tree("made up", nodes, expanded)

    def tokens(paths):
        return 1 + sum(counts[path] for path in paths) / total

    def rate(tree):
        return tokens(tree.paths) / cost(tree.num_nodes, tree.expanded)

    trees = best_trees(counts, tokens, cost, most=3, sizes=range(1, 15), depth=3)
    rates = [rate(DraftTree.from_paths(tree)) for tree in trees]
    assert rates[0] == pytest.approx(max(map(rate, every_tree(2, 3))))
    assert rates == sorted(rates, reverse=True)
    assert len({max(map(len, tree)) for tree in trees}) == len(trees), "each of another depth"


def test_speed_is_tokens_over_seconds():
    rounds = np.array([90.0, 110.0, 100.0, 100.0])
    rate, error = tokens_a_second(rounds, 5.0, tokens=256, begin=20.0, batch=1)
    assert rate == pytest.approx(256 / 0.520)
    assert error == pytest.approx(rate * 500 / 520 * np.std(rounds, ddof=1) / 100 / 2)
    # Sixteen pictures are done when the slowest is; an uncertain clock adds to the error.
    many, wider = tokens_a_second(rounds, 5.0, tokens=256, begin=20.0, batch=16, error=0.1)
    assert 16 * 256 / 0.570 < many < 16 * 256 / 0.560 and wider / many > 0.09


def test_costs_lie_on_lines_through_the_measured_ones():
    costs = Costs(PASSES, place=0.1, drafts={"a": Drafts(1.0, {1: 0.5, 4: 0.8})})
    assert costs.a_pass(4) == pytest.approx(5.8) and costs.a_pass(13) == pytest.approx(11.1)
    assert costs.tree("a", 6, (1, 2)) == pytest.approx(6.1 + 0.625 + 1.0 + 0.5 + 0.6)
    window = DraftTree.window(4)
    assert costs.window(window) == pytest.approx(6.1 + 0.4)
    assert costs.window(window, "a", 1) == pytest.approx(6.1 + 0.4 + 1.0)
    assert costs.window(window, "a", 3) == pytest.approx(6.1 + 0.4 + 1.0 + 2 * 0.8)


def test_drafts_cost_what_rounds_take_beyond_their_passes():
    made = Costs(PASSES, drafts={"a": Drafts(1.0, {1: 0.5, 4: 0.8})})
    shapes = [(1, 1), (1, 5), (4, 3)]
    trees = {shape: chains(*shape) for shape in shapes}
    assert trees[4, 3].expanded == (4, 4) and trees[1, 5].num_nodes == 6
    times = {("a", *shape): made.tree("a", tree.num_nodes, tree.expanded) for shape, tree in trees.items()}
    found = draft_costs(made, times, "a")
    assert found.root == pytest.approx(1.0)
    assert found.levels == {1: pytest.approx(0.5), 4: pytest.approx(0.8)}
    # An inaccurate clock does not make drafting cheaper than nothing.
    assert draft_costs(made, {name: 1.0 for name in times}, "a") == Drafts(0.0, {1: 0.0, 4: 0.0})
    assert _rising({1: 4.0, 9: 7.0, 2: 6.0, 5: 5.0}) == {1: 4.0, 2: 5.5, 5: 5.5, 9: 7.0}
    assert filler(7) is filler(7) and filler(7).max_depth == 1


def test_budgets_bound_what_is_substituted():
    few, many = np.array([0.04, 0.06]), np.array([0.08, 0.10])
    assert Budget().holds(np.zeros(0)) and not Budget().holds(few)
    assert Budget(0.0).holds(np.zeros(2)) and not Budget().holds(np.zeros(2)), "a relaxed rule by luck"
    assert Budget(0.07).holds(few) and not Budget(0.07).holds(many)
    assert not Budget(0.055).holds(few), "the mean keeps to it, but not with its error"


def test_climbing_finds_the_top_and_stops_in_time():
    def value(guesses):
        refined = 50 if guesses.refine is None else 3 * (guesses.refine - 3) ** 2
        return -((guesses.nodes - 12) ** 2) - refined

    starts = [Guesses("led", 5, 1), Guesses("jacobi", 8)]
    seen = climb(starts, choose.neighbours, value)
    assert max(seen, key=seen.get) == Guesses("led", 12, 3)
    assert len(seen) < len(choose.WINDOWS) * len(choose.REFINE) / 4
    left = iter([True] * 3 + [False] * 99)
    assert len(climb(starts, choose.neighbours, value, lambda: next(left))) == 4
    assert len(climb(starts, choose.neighbours, value, lambda: False)) == 1


def test_neighbours_differ_in_one_size():
    assert set(choose.neighbours(Guesses("jacobi", 5))) == {Guesses("jacobi", 4), Guesses("jacobi", 6)}
    sizes = {(4, 1), (6, 1), (5, 0), (5, 2)}
    assert set(choose.neighbours(Guesses("led", 5, 1))) == {Guesses("led", *size) for size in sizes}
    assert choose.beside(choose.WINDOWS, 23) == [25, 20]
