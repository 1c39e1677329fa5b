"""Which shard of a set goes to which of the workers that come and go; what is to be done when one is lost.

Nothing here knows what a worker is: states follow from states, whoever asks.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# A shard that failed so often is set aside, and so many shards set aside end a run.
TRIES = 3
# Workers lost in a row before they had a shard, nothing written in between, that end a run.
BEGINNINGS = 5


@dataclass(frozen=True)
class Handout:
    """Shards on their way.

    Attributes:
        waiting: in the order in which they are handed out; one that failed is the next.
        held: the shard of every worker that has one.
        failures: how often each shard failed, those written left out.
        aside: shards that failed ``TRIES`` times, and why they did the last time.
        beginnings: workers lost in a row before they had a shard.
        why: of the last loss, in words.
    """

    waiting: tuple[int, ...]
    held: Mapping[int, int] = field(default_factory=dict)
    failures: Mapping[int, int] = field(default_factory=dict)
    aside: Mapping[int, str] = field(default_factory=dict)
    beginnings: int = 0
    why: str = ""

    @classmethod
    def of(cls, shards: Iterable[int]) -> "Handout":
        """Nothing handed out yet."""
        return cls(tuple(shards))

    @property
    def left(self) -> int:
        """Shards that are to be written yet, those set aside left out."""
        return len(self.waiting) + len(self.held)

    @property
    def hopeless(self) -> bool:
        """Whether to stop before all is tried: so much failed that the rest would."""
        return len(self.aside) >= TRIES or self.beginnings >= BEGINNINGS

    def take(self, worker: int) -> "Handout":
        """The next shard is this worker's, which has none: ``held`` tells which, if any is waiting."""
        if not self.waiting or worker in self.held:
            return self
        shard, *waiting = self.waiting
        return dataclasses.replace(self, waiting=tuple(waiting), held={**self.held, worker: shard})

    def written(self, worker: int) -> "Handout":
        """A worker wrote its shard."""
        shard, held = self._without(worker)
        failures = {other: count for other, count in self.failures.items() if other != shard}
        return dataclasses.replace(self, held=held, failures=failures, beginnings=0)

    def lost(self, worker: int, why: str) -> "Handout":
        """A worker failed or died; what it held goes to the next that asks, or is set aside."""
        shard, held = self._without(worker)
        if shard is None:
            return dataclasses.replace(self, beginnings=self.beginnings + 1, why=why)
        count = self.failures.get(shard, 0) + 1
        now = dataclasses.replace(self, held=held, failures={**self.failures, shard: count}, why=why)
        if count < TRIES:
            return dataclasses.replace(now, waiting=(shard, *self.waiting))
        return dataclasses.replace(now, aside={**self.aside, shard: why})

    def complaint(self) -> str | None:
        """The line for what could not be made; None where nothing is wrong."""
        if self.aside:
            shard, why = next(iter(self.aside.items()))
            more = f" (and {len(self.aside) - 1} more did)" if len(self.aside) > 1 else ""
            return f"shard {shard} failed {TRIES} times{more}, the last time because: {why}"
        if self.hopeless:
            return f"{self.beginnings} workers in a row were lost before they began, the last because: {self.why}"
        return None

    def _without(self, worker: int) -> tuple[int | None, dict[int, int]]:
        return self.held.get(worker), {other: shard for other, shard in self.held.items() if other != worker}
