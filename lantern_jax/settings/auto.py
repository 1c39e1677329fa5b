"""``auto``: how many codes to guess, by one table and a line for each platform. Needs no JAX.

Strict decoding on the shared noise gives plain decoding's tokens with any guesses, so the choice only changes how
fast a picture comes. Nothing is measured or kept: the same call is decoded the same way in every process.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lantern_jax.decoding.choices import split

# The guesses that are considered, each a method's text, and their tokens per pass for a checkpoint whose metadata does
# not have its own (measured by ``train.fit``): the demo's, which is as hard to guess as published models (24 pictures).
TOKENS = {
    **{f"jacobi:nodes={nodes}": tokens for nodes, tokens in (
        (2, 1.49), (3, 1.62), (4, 1.74), (5, 1.86), (8, 2.13), (16, 2.59), (31, 3.07), (56, 3.16),
    )},
    **{f"led:nodes={nodes},refine={refine}": tokens for nodes, refine, tokens in (
        (3, 1, 1.80), (5, 1, 2.03), (7, 1, 2.22), (9, 1, 2.35), (16, 3, 2.78), (25, 3, 3.39), (56, 3, 4.00),
    )},
}  # fmt: skip


class PassCosts(NamedTuple):
    """What a pass over r rows (nodes x pictures, twice under guidance) costs: 1 + r / ``knee`` for the rows.

    Attributes:
        knee: rows whose products take as long as reading the weights.
        guesses: what making and checking guesses adds.
        drafter: what each pass of a drafter adds.
    """

    knee: float
    guesses: float
    drafter: float


# Measured on two cores of an EPYC, and on an H100 and an H200 (docs/tuning.md); TPUs by their data sheets.
# In float32, and in 16 bits.
COSTS = {
    "cpu": (PassCosts(20, 0.3, 0.3), PassCosts(20, 0.3, 0.3)),
    "gpu": (PassCosts(120, 0.3, 0.1), PassCosts(800, 0.2, 0.1)),
    "tpu": (PassCosts(23, 0.2, 0.1), PassCosts(138, 0.2, 0.1)),
}
# Guesses must promise this, since plain decoding's cost is the surest.
SURE = 1.05


class Expected(NamedTuple):
    """A method, and what is expected of it: its guesses, tokens per pass, and the cost of a pass in plain steps."""

    method: str
    nodes: int
    tokens: float
    cost: float

    @property
    def speedup(self) -> float:
        """How many times as fast as plain decoding."""
        return self.tokens / self.cost

    @property
    def words(self) -> str:
        """Says in a line that it was chosen."""
        if not self.nodes:
            return "auto: plain decoding"
        gives = f"{self.tokens:.1f} tokens per pass at {self.cost:.1f} times a step"
        return f"auto: {self.method}: {gives}, {self.speedup:.2f}x expected"


PLAIN = Expected("ar", 0, 1.0, 1.0)


def choose(
    platform: str, itemsize: int, sequences: int, own: Mapping[str, Any], drafts: bool
) -> tuple[Expected, list[Expected]]:
    """Returns the best row, and all of them, the fastest first.

    Args:
        platform, itemsize: where products are computed, and bytes of a number in them.
        sequences: rows of a plain step, on each device.
        own: the checkpoint's tokens per pass, by the text of a method; impossible ones are ignored.
        drafts: whether the checkpoint has a drafter.
    """
    costs = COSTS[platform][itemsize < 4]

    def row(method: str) -> Expected:
        _, fields = split(method, "method")
        nodes, passes = int(fields["nodes"]), 1 + int(fields["refine"]) if "refine" in fields else 0
        spent = 1 + costs.guesses + passes * costs.drafter + sequences * (1 + nodes) / costs.knee
        tokens = own.get(method)
        sound = isinstance(tokens, int | float) and 1 <= tokens <= 1 + nodes
        return Expected(
            method, nodes, tokens if sound else TOKENS[method], spent / (1 + sequences / costs.knee)
        )

    rows = [row(method) for method in TOKENS if drafts or "refine" not in method]
    rows = sorted([PLAIN, *rows], key=lambda row: -row.speedup)
    return rows[0] if rows[0].speedup >= SURE else PLAIN, rows
