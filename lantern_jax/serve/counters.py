"""What a server counts, as Prometheus reads it.

A counter is written by one thread alone: those of requests by the loop that answers, those of pictures by the device's.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

# Upper ends of the histogram, in seconds.
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600)


class Counters:
    """Sums since the server began.

    Attributes:
        requests: by HTTP status.
        ended: connections that the server ended, by what they did not do in time (``headers``, ``body``, ``idle``: ask
            again, ``answer``: take it), or ``room``: for another to come in.
        pictures, tokens, rounds: of pictures that are done.
        dropped: pictures that were begun or waited when their client went.
        programs_dropped: compiled programs there was no room for.
        seconds: of decoding, those of pictures that share a batch counted once.
        drawing_seconds: of the VQ decoder.
        request_seconds: of requests for pictures that were answered.
    """

    def __init__(self):
        self.requests: Counter[int] = Counter()
        self.ended: Counter[str] = Counter()
        self.pictures = self.tokens = self.rounds = self.dropped = self.programs_dropped = 0
        self.seconds = self.drawing_seconds = self.request_seconds = 0.0
        self._within = Counter(dict.fromkeys(BUCKETS, 0))
        self._answered = 0

    def answered(self, seconds: float) -> None:
        """Counts a request for pictures that took so long."""
        self._answered += 1
        self.request_seconds += seconds
        for bound in BUCKETS:
            self._within[bound] += seconds <= bound

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of them in Prometheus' text format, and gauges: what is so now, by name."""
        return "\n".join([*self._lines(gauges), ""])

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        yield "# TYPE lantern_requests_total counter"
        for status, count in sorted(self.requests.items()):
            yield f'lantern_requests_total{{status="{status}"}} {count}'
        yield "# TYPE lantern_connections_ended_total counter"
        for why, count in sorted(self.ended.items()):
            yield f'lantern_connections_ended_total{{why="{why}"}} {count}'
        sums = {
            "pictures": self.pictures,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "pictures_dropped": self.dropped,
            "programs_dropped": self.programs_dropped,
            "decoding_seconds": self.seconds,
            "drawing_seconds": self.drawing_seconds,
        }
        for name, value in sums.items():
            yield f"# TYPE lantern_{name}_total counter"
            yield f"lantern_{name}_total {value}"
        for name, value in gauges.items():
            yield f"# TYPE lantern_{name} gauge"
            yield f"lantern_{name} {value}"
        yield "# TYPE lantern_request_seconds histogram"
        for bound in BUCKETS:
            yield f'lantern_request_seconds_bucket{{le="{bound}"}} {self._within[bound]}'
        yield f'lantern_request_seconds_bucket{{le="+Inf"}} {self._answered}'
        yield f"lantern_request_seconds_sum {self.request_seconds}"
        yield f"lantern_request_seconds_count {self._answered}"
