"""Tokens per pass of windows, as recorded in a checkpoint's metadata and in the notes of runs. Needs no JAX."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from lantern_jax.decoding.gap_tree import GapTree
from lantern_jax.decoding.tree import DraftTree
from lantern_jax.io.errors import LanternError

# The entry of a checkpoint's metadata, measured at the default settings of its sampling distribution.
ACCEPTANCE = "tokens_per_pass"


class WindowPoint(NamedTuple):
    """A window to decode with.

    Attributes:
        window: W; 0 is plain decoding.
        branches, levels: guesses for each of the first places, and the number of those places.
        passes: of the drafter in a round, including the one that takes in the committed tokens; 0 means no drafter.
        nodes: of a tree chosen by the gaps; 0 for a static tree.
    """

    window: int
    branches: int = 1
    levels: int = 0
    passes: int = 0
    nodes: int = 0

    @property
    def tree(self) -> DraftTree | GapTree:
        """The tree of a round's draft."""
        if self.nodes:
            return GapTree(self.window, self.nodes)
        return DraftTree.window(*self[:3]) if self.window else DraftTree.empty()


PLAIN = WindowPoint(0)


@lru_cache(256)
def tree_of(point: WindowPoint) -> DraftTree | GapTree | None:
    """Returns a window's tree; None if its sizes do not make one."""
    try:
        return point.tree
    except LanternError:
        return None


def read_acceptance(values: Any) -> dict[WindowPoint, float]:
    """Reads tokens per pass by window, as ``write_acceptance`` writes them; ignores anything else."""
    found = {}
    for name, tokens in values.items() if isinstance(values, Mapping) else ():
        parts = name.split(",") if isinstance(name, str) else ()
        if len(parts) == 5 and all(part.isdecimal() and len(part) < 4 for part in parts):
            point = WindowPoint(*map(int, parts))
            sound = (
                1 <= point.window <= 64 and 1 <= point.branches <= 8 and point.levels <= min(point.window, 4)
            )
            # A tree chosen by the gaps is led by a drafter.
            by_gaps = point.passes and point.window <= point.nodes <= 256
            sound = sound and point.passes <= 65 and (not point.nodes or by_gaps)
            sound = sound and isinstance(tokens, int | float) and 1 <= tokens <= point.window + 1
            if sound and tree_of(point) is not None:
                found[point] = float(tokens)
    return found


def write_acceptance(tokens: Iterable[tuple[WindowPoint, float]]) -> dict[str, float]:
    """Returns tokens per pass by window for JSON."""
    return {",".join(map(str, point)): round(value, 3) for point, value in tokens}
