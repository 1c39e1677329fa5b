"""The accepted lengths that a forced run replays: profiles, chances of 0, 1, 2, ... accepted draft tokens per round."""

import math
from dataclasses import dataclass

from lantern_jax.decoding.fields import MOST_INT
from lantern_jax.io.errors import LanternError, quoted

HELP = (
    "replay accepted lengths instead of those that verification finds, though it still runs: a mean number of tokens "
    "per pass (3.63: accepted ones and the one after them), or chances of 0, 1, 2, ... accepted tokens (0.3,0.2,0.5)"
)
_WANTED = "a mean number of tokens per pass >= 1, such as 3.63, or two or more chances that sum to 1, such as 0.4,0.6"


@dataclass(frozen=True)
class AcceptLengths:
    """A distribution of accepted lengths, as it was given.

    Attributes:
        mean: tokens per pass, the accepted ones and the one after them; None where ``chances`` are given.
        chances: of 0, 1, 2, ... accepted tokens; empty where ``mean`` is given.
    """

    mean: float | None = None
    chances: tuple[float, ...] = ()

    def over(self, depth: int) -> tuple[float, ...]:
        """Returns the chances of 0 to ``depth`` accepted tokens.

        For a mean, each token is accepted with the same chance if those before it are, up to ``depth`` tokens: a
        geometric distribution whose tail is put on ``depth``. For a list, what lies beyond ``depth`` is put on it.

        Raises:
            LanternError: a mean that a tree of this depth cannot have.
        """
        if self.mean is None:
            head = self.chances[:depth]
            return (*head, *(0.0,) * (depth - len(head)), max(0.0, 1 - math.fsum(head)))
        if self.mean > depth + 1:
            raise LanternError(
                f"accept lengths of mean {self.mean:g} need a tree of depth {math.ceil(self.mean) - 1}, and this one "
                f"has {depth}: give a deeper tree or a smaller mean"
            )
        chance = _chance_of_mean(self.mean, depth)
        return (*((1 - chance) * chance**length for length in range(depth)), chance**depth)

    def to_json(self) -> float | list[float]:
        """Returns it as ``parse_accept_lengths`` reads it."""
        return list(self.chances) if self.mean is None else self.mean


def parse_accept_lengths(text: str) -> AcceptLengths:
    """Parses a mean, or comma-separated chances.

    Raises:
        LanternError: neither, a mean below 1, chances that are negative or do not sum to 1.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    is_mean = len(numbers) == 1
    if not numbers or not all(map(math.isfinite, numbers)) or (is_mean and not 1 <= numbers[0] <= MOST_INT):
        raise LanternError(f"accept lengths {quoted(text)} are not valid: give {_WANTED}")
    if is_mean:
        return AcceptLengths(mean=numbers[0])
    total = math.fsum(numbers)
    if min(numbers) < 0 or abs(total - 1) > 1e-3:
        raise LanternError(f"accept lengths {quoted(text)} sum to {total:g}: give {_WANTED}")
    return AcceptLengths(chances=tuple(number / total for number in numbers))


def _chance_of_mean(mean: float, depth: int) -> float:
    """Returns the chance ``a`` of a token for which 1 + a + ... + a ** depth is the mean, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if math.fsum(middle**level for level in range(depth + 1)) < mean:
            low = middle
        else:
            high = middle
    return high
