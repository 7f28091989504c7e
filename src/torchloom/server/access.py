"""Logs for machines: a line of JSON a request, and the same for whatever else the server says."""

import json
import logging
import time
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_QUIET = ("/healthz", "/readyz", "/metrics")  # asked every few seconds by other machines
_log = logging.getLogger("torchloom.server.access")


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and the facts of a request."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said: dict[str, object] = {"time": at, "level": record.levelname, "logger": record.name}
        facts = getattr(record, "facts", None)
        said.update(facts if facts is not None else {"message": record.getMessage()})
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class AccessLog:
    """Note each request: the path as its template, for what is in it may be anybody's secret."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            _note(scope, status, time.perf_counter() - began)


def _note(scope: Scope, status: int, seconds: float) -> None:
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
