"""What a tuning is for, and what it finds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lantern_jax.apps.measuring.choose import Budget, Candidate
from lantern_jax.settings.tuned import Tuned

PLAIN = "plain"


@dataclass(frozen=True)
class Goal:
    """What a tuning is for, and how far it goes.

    Attributes:
        options: batch, guidance and sampling of the calls that it is for; None for the defaults.
        budget: what relaxed rules may cost.
        pictures: the number that trees grow on, and as many again that everything is estimated on; decoded together.
        minutes: how long it takes, unless decoding the pictures plainly and a short confirming run take longer.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    pictures: int = 16
    minutes: float = 5.0


@dataclass(frozen=True)
class Tuning:
    """What a tuning found.

    Attributes:
        tuned: the settings to be written.
        rows: all candidates: confirmed ones sorted by measured speed, then the others by predicted speed.
        default: the name of the candidate that a call decodes with without tuning; empty if Ctrl-C came first.
        is_stopped: whether Ctrl-C came before the end.
    """

    tuned: Tuned
    rows: tuple[Candidate, ...]
    default: str
    is_stopped: bool = False
