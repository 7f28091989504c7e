"""Logs for machines: a line of JSON a request, and the same for whatever else the server says."""

import json
import logging
import re
from datetime import UTC, datetime

from starlette.types import Scope

_QUIET = ("/healthz", "/readyz", "/metrics")  # asked every few seconds by other machines
_QUERY = re.compile(r"(/[^\s?\"'<>]*)\?[^\s\"'<>]+")  # behind a path
_log = logging.getLogger("torchloom.server.access")


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and the facts of a request.

    Whatever writes a path with its query string, ours or a library: the query is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said: dict[str, object] = {"time": at, "level": record.levelname, "logger": record.name}
        facts = getattr(record, "facts", None)
        said.update(facts if facts is not None else {"message": _plain(record.getMessage())})
        if record.exc_info:
            said["traceback"] = _plain(self.formatException(record.exc_info))
        return json.dumps(said, default=str)


def _plain(text: str) -> str:
    return _QUERY.sub(r"\1?...", text)


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Note a request: the path as its template, for what is in it may be anybody's secret."""
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
