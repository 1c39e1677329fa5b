"""What a server counts, in Prometheus' text format.

Each counter is written by one thread: those of requests by the event loop, those of pictures by the device's thread.
"""

from collections import Counter
from collections.abc import Iterator

# Upper ends of the histogram, in seconds.
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)


class Counters:
    """Sums since the server started.

    Attributes:
        requests: by HTTP status; 0 if the client left before it had the whole answer.
        pictures, tokens, rounds: of finished pictures.
        dropped: pictures that were begun or waiting when their client left.
        programs_dropped: compiled programs that there was no room for.
        seconds: of decoding; those shared by the pictures of a batch are counted once.
        drawing_seconds: of the VQ decoder.
        request_seconds: of answered requests for pictures.
    """

    def __init__(self):
        self.requests: Counter[int] = Counter()
        self.pictures = self.tokens = self.rounds = self.dropped = self.programs_dropped = 0
        self.seconds = self.drawing_seconds = self.request_seconds = 0.0
        self._within = Counter(dict.fromkeys(BUCKETS, 0))
        self._answered = 0

    def answered(self, seconds: float) -> None:
        """Counts a request for pictures that took ``seconds``."""
        self._answered += 1
        self.request_seconds += seconds
        for bound in BUCKETS:
            self._within[bound] += seconds <= bound

    def lines(self, **gauges: float) -> Iterator[str]:
        """Yields the lines of all counters, and of gauges by name."""
        yield "# TYPE lantern_requests_total counter"
        for status, count in sorted(self.requests.items()):
            yield f'lantern_requests_total{{status="{status}"}} {count}'
        sums = {
            "pictures_total": self.pictures,
            "tokens_total": self.tokens,
            "rounds_total": self.rounds,
            "pictures_dropped_total": self.dropped,
            "programs_dropped_total": self.programs_dropped,
            "decoding_seconds_total": self.seconds,
            "drawing_seconds_total": self.drawing_seconds,
        }
        for kind, values in (("counter", sums), ("gauge", gauges)):
            for name, value in values.items():
                yield f"# TYPE lantern_{name} {kind}"
                yield f"lantern_{name} {value}"
        yield "# TYPE lantern_request_seconds histogram"
        for bound in BUCKETS:
            yield f'lantern_request_seconds_bucket{{le="{bound}"}} {self._within[bound]}'
        yield f'lantern_request_seconds_bucket{{le="+Inf"}} {self._answered}'
        yield f"lantern_request_seconds_sum {self.request_seconds}"
        yield f"lantern_request_seconds_count {self._answered}"
