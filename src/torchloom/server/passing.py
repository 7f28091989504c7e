"""See requests pass: how each was answered and how long it took, told to whoever takes notes."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.server.sessions import ADMITTED, UNPROVEN

Note = Callable[[Scope, int, float], None]  # what was asked, the status, seconds

_ACCEPTED = 101
_UNKNOWN = 401  # of a WebSocket that does not show its second secret
_FAILED = 500  # nobody has answered


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
