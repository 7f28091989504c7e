"""Call an ASGI app as a server would, headers and all, and return what it answers."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

Headers = Sequence[tuple[str, str]]
HOST = ("host", "localhost:8787")
RESPONSE = {"websocket.http.response": {}}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status, headers and a body.

    The status of a WebSocket is 101 when it was let in, else the code by which it was closed.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The body, which must be problem details of the same status."""
        assert self.headers["content-type"] == "application/problem+json"
        facts: dict[str, Any] = json.loads(self.body)
        assert facts["status"] == self.status
        return facts

    @property
    def code(self) -> str:
        return str(self.problem["code"])


def call(
    app: ASGIApp, method: str, path: str, headers: Headers = (HOST,), said: Sequence[str] = ()
) -> Answer:
    """Make a request, or ask for a WebSocket where the method is WS, and say something on it."""
    return asyncio.run(acall(app, method, path, headers, said=said))


async def acall(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Headers = (HOST,),
    extensions: dict[str, Any] | None = None,
    said: Sequence[str] = (),
) -> Answer:
    sent: list[dict[str, Any]] = []
    websocket = method == "WS"
    scope = {
        "type": "websocket" if websocket else "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "ws" if websocket else "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8787),
        "extensions": RESPONSE if extensions is None else extensions,
    }
    messages: list[dict[str, Any]] = [{"type": "websocket.receive", "text": text} for text in said]
    begun = {"type": "websocket.connect" if websocket else "http.request"}
    heard = iter([begun, *messages])

    async def receive() -> dict[str, Any]:
        return next(heard, {"type": "websocket.disconnect" if websocket else "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return _answer(sent)


def _answer(sent: list[dict[str, Any]]) -> Answer:
    first = sent[0]
    if first["type"] == "websocket.accept" and sent[-1]["type"] == "websocket.close":
        return Answer(sent[-1]["code"], {}, sent[-1]["reason"].encode())
    if first["type"] == "websocket.accept":
        return Answer(101, {}, b"")
    if first["type"] == "websocket.close":
        return Answer(first["code"], {}, b"")
    headers = {name.decode().lower(): value.decode() for name, value in first["headers"]}
    return Answer(first["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]))
