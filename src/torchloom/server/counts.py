"""How often the server was asked what, and how long it took."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from starlette.types import Scope

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_OTHER = "other"  # what has no route: anybody may make up such paths
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Durations:
    """How many took at most how long."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield (upper bound, how many were at most that)."""
        count = 0
        for bound, more in zip((*map(str, BOUNDS), "+Inf"), self.buckets, strict=True):
            count += more
            yield bound, count


class Counts:
    """Requests by method, path template and status."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.durations: dict[tuple[str, str], Durations] = {}

    def note(self, method: str, path: str, status: int, seconds: float) -> None:
        self.requests[method, path, status] += 1
        self.durations.setdefault((method, path), Durations()).add(seconds)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count what passes: of a request its time, of a WebSocket the time until it was taken."""
        method = scope.get("method", "WS")
        known = method if method in (*_METHODS, "WS") else _OTHER
        self.note(known, getattr(scope.get("route"), "path", _OTHER), status, seconds)
