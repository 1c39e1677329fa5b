"""Methods: named combinations of drafting, coupling and acceptance rule.

A method fixes some knobs of a generation; every other one, and any of these that is given too, is as without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Method:
    """A named combination.

    Attributes:
        help: one line: what it is and what it promises.
        knobs: the knobs that it fixes, by name.
    """

    help: str
    knobs: Mapping[str, Any]

    @property
    def drafts(self) -> bool:
        """Whether it needs a drafter."""
        return self.knobs.get("tree") != "none"


_METHODS = {
    "ar": Method("plain autoregressive decoding, a token a pass", {"tree": "none"}),
    "eagle": Method(
        "EAGLE's accept tests with residuals: the target's own distribution",
        {"rule": "strict", "coupling": "rejection"},
    ),
    "lantern": Method(
        "LANTERN: neighbours of a code lend it up to delta, accept tests with residuals",
        {"rule": "lantern", "coupling": "rejection"},
    ),
    "lantern++": Method(
        "LANTERN++: neighbours lend up to lam - 1 times a code's own probability, accept tests with residuals",
        {"rule": "lantern++", "coupling": "rejection"},
    ),
    "gumbel": Method(
        "noise shared by drafter and target: the very tokens of plain decoding (in float32)",
        {"rule": "strict", "coupling": "gumbel"},
    ),
    "lantern-g": Method(
        "LANTERN++'s rule on shared noise", {"rule": "lantern++", "coupling": "gumbel"}
    ),
}  # fmt: skip


def methods() -> Mapping[str, Method]:
    """The methods there are, by name."""
    return MappingProxyType(_METHODS)
