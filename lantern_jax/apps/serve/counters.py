"""What a server counts, in Prometheus' text format.

Each counter is written by one thread: those of requests by the event loop, those of pictures by the device's thread.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Sums since the server started.

    Attributes:
        requests: by HTTP status; 0 if the client left before it had the whole answer.
        pictures, tokens, rounds: of finished pictures.
        pictures_dropped: those that were begun or waiting when their client left.
        programs_dropped: compiled programs that there was no room for.
        decoding_seconds: those shared by the pictures of a batch are counted once.
        drawing_seconds: of the VQ decoder.
        answers, answering_seconds: answered requests for pictures.
    """

    requests: Counter[int] = field(default_factory=Counter)
    pictures: int = 0
    tokens: int = 0
    rounds: int = 0
    pictures_dropped: int = 0
    programs_dropped: int = 0
    decoding_seconds: float = 0.0
    drawing_seconds: float = 0.0
    answers: int = 0
    answering_seconds: float = 0.0

    def answered(self, seconds: float) -> None:
        """Counts a request for pictures that took ``seconds``."""
        self.answers += 1
        self.answering_seconds += seconds

    def lines(self, **gauges: float) -> Iterator[str]:
        """Yields the lines of all counters, and of gauges by name."""
        sums = dict(vars(self))
        yield "# TYPE lantern_requests_total counter"
        for status, count in sorted(sums.pop("requests").items()):
            yield f'lantern_requests_total{{status="{status}"}} {count}'
        totals = {f"{name}_total": value for name, value in sums.items()}
        for kind, values in (("counter", totals), ("gauge", gauges)):
            for name, value in values.items():
                yield f"# TYPE lantern_{name} {kind}"
                yield f"lantern_{name} {value}"
