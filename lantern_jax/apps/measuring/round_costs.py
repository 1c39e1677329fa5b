"""What a round costs: a pass by its nodes, a level of drafting by its width, and each place of a window.

All milliseconds are for a whole batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.tree import DraftTree


@dataclass(frozen=True)
class Drafts:
    """What a kind of drafter costs, in milliseconds.

    Attributes:
        root: a round's first level: taking in what was committed, and drafting the root's children.
        levels: each further level, by the number of nodes that have children.
    """

    root: float
    levels: Mapping[int, float]

    def level(self, width: int) -> float:
        """Returns the cost of a level of that width, on the line through the measured ones."""
        return on_line(self.levels, width)


@dataclass(frozen=True)
class Costs:
    """What rounds cost, in milliseconds.

    Attributes:
        passes: a round that drafts nothing useful, by nodes, root included.
        begin: prefill and the first token.
        place: what each place of a window adds; 0 where there was no time to measure it.
        drafts: what drafting costs, by kind of drafter.
        error: relative standard error of a measured round.
    """

    passes: Mapping[int, float]
    begin: float = 0.0
    place: float = 0.0
    drafts: Mapping[str, Drafts] = field(default_factory=dict)
    error: float = 0.0

    def a_pass(self, nodes: int) -> float:
        """Returns the cost of a pass over ``nodes`` nodes."""
        return on_line(self.passes, nodes)

    def tree(self, kind: str, nodes: int, expanded: Sequence[int]) -> float:
        """Returns the cost of a round with a static tree.

        Args:
            nodes: root included.
            expanded: how many nodes have children, in each of the levels 1, 2, ...
        """
        drafts = self.drafts[kind]
        return self.a_pass(nodes) + drafts.root + sum(drafts.level(width) for width in expanded)

    def window(self, tree: DraftTree | GapTree, kind: str | None = None, passes: int = 0) -> float:
        """Returns the cost of a round with a window and ``passes`` passes of a kind of drafter."""
        spent = self.a_pass(tree.num_nodes) + self.place * tree.max_depth
        if kind is None:
            return spent
        return spent + self.drafts[kind].root + (passes - 1) * self.drafts[kind].level(tree.max_depth)


def on_line(measured: Mapping[int, float], at: int) -> float:
    """Interpolates between measured points; beyond the last one it follows the line of the last two, never falling."""
    known = sorted(measured)
    if at <= known[-1] or len(known) == 1:
        return float(np.interp(at, known, [measured[x] for x in known]))
    low, high = known[-2:]
    slope = max(0.0, (measured[high] - measured[low]) / (high - low))
    return measured[high] + slope * (at - high)
