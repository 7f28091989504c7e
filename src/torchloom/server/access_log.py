"""Logs for machines: a line of JSON a request, and the same for whatever else the server says."""

import json
import logging
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.server.security.auth import ADMITTED, UNPROVEN

_ACCEPTED = 101
_UNKNOWN = 401  # of a WebSocket that does not show its second secret
_FAILED = 500  # no response was sent
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_OTHER = "other"  # paths without a route, of which clients can invent any number
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_QUIET = ("/healthz", "/readyz", "/metrics")  # asked every few seconds by other machines
_QUERY = re.compile(r"(/[^\s?\"'<>]*)\?[^\s\"'<>]+")  # behind a path
_log = logging.getLogger("torchloom.server.access_log")


Note = Callable[[Scope, int, float], None]  # what was asked, the status, seconds


class Passing:
    """Wraps an app. A request is noted when it is over, a WebSocket when the app accepts it."""

    def __init__(self, app: ASGIApp, *notes: Note) -> None:
        self.app = app
        self._notes = notes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), _FAILED

        def note() -> None:
            for each in self._notes:
                each(scope, status, time.perf_counter() - began)

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept" and message.pop(UNPROVEN, False):
                status = _UNKNOWN
            elif message["type"] in ("websocket.accept", ADMITTED):
                status = _ACCEPTED
                note()
            if message["type"] != ADMITTED:
                await send(message)

        try:
            await self.app(scope, receive, seen)
        finally:
            if status != _ACCEPTED:
                note()


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


class JsonLogFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and the facts of a request.

    Whatever writes a path with its query string, ours or a library: the query is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, object] = {"time": at, "level": record.levelname, "logger": record.name}
        facts = getattr(record, "facts", None)
        entry.update(facts if facts is not None else {"message": _plain(record.getMessage())})
        if record.exc_info:
            entry["traceback"] = _plain(self.formatException(record.exc_info))
        return json.dumps(entry, default=str)


def _plain(text: str) -> str:
    return _QUERY.sub(r"\1?...", text)


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Log a request with its path template: the path itself may hold a secret."""
    path = getattr(scope.get("route"), "path", "-")
    if path in _QUIET and status < 400:
        return
    facts = {
        "method": scope.get("method", "WS"),
        "path": path,
        "status": status,
        "ms": round(seconds * 1000, 2),
        "user": getattr(scope.get("state", {}).get("identity"), "user", None),
    }
    _log.info("request", extra={"facts": facts})
