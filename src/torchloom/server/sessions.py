"""A browser's session: a cookie, and a secret that the pages of one origin hold.

Browsers send a cookie to every port of a host, so the server behind any of them gets it. What a
page stores is bound to scheme, host and port. So a request needs both: the cookie and, in a
header, the secret that the login returned. A browser's WebSocket has no such header; there the
secret is the first message, and the app receives the socket only when it was the right one.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

HEADER: Final = "X-Loom-Session"
STORED: Final = "loom-session"  # the name under which a page keeps the secret
OPENING: Final = "session"  # the `op` of a WebSocket's first message
ADMITTED: Final = "torchloom.admitted"  # sent where the app accepts a socket that is open already
UNPROVEN: Final = "torchloom.unproven"  # marks the accept of a socket that awaits its secret
_PATIENCE = 5.0  # seconds for the first message
_REFUSED, _LATER = 1008, 1013
_MOST = 4  # cookies of one name that are looked at
_LONGEST_REASON = 120  # bytes of a close frame are few
_USUAL = {"http": 80, "ws": 80, "https": 443, "wss": 443}


def cookie_name(scope: Scope) -> str:
    """Return what the cookie is called: by the port that was asked, so planes do not share one."""
    port = re.search(r":(\d{1,5})$", next(iter(values(scope, "host")), ""))
    return f"loom-{port[1] if port else _USUAL.get(scope.get('scheme', ''), 80)}"


def cookies_of(scope: Scope) -> list[str]:
    """Return our cookie as it was sent; several when another port has set one of our name."""
    ours, found = cookie_name(scope), []
    for pair in ";".join(values(scope, "cookie")).split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == ours:
            found.append(value.strip().strip('"'))
    return found[:_MOST]


def proof_of(scope: Scope) -> str:
    """Return the second secret as it was sent; nothing when there is none, or several."""
    found = values(scope, HEADER.lower())
    return found[0] if len(found) == 1 else ""


def values(scope: Scope, name: str) -> list[str]:
    """Return every value of a header, by its name in small letters."""
    key = name.encode()
    return [value.decode("latin-1").strip() for each, value in scope["headers"] if each == key]


async def first_message(receive: Receive, send: Send) -> str:
    """Open a WebSocket and return the secret that it begins with; nothing if it does not."""
    await receive()  # that it wants to connect
    await send({"type": "websocket.accept", UNPROVEN: True})
    try:
        async with asyncio.timeout(_PATIENCE):
            message = await receive()
    except TimeoutError:
        return ""
    return _secret(message.get("text") or "")


def opened(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Return both ends of an open WebSocket for an app that has yet to accept or refuse it."""
    begun: list[Message] = [{"type": "websocket.connect"}]
    refuse = _refusal(send)

    async def received() -> Message:
        return begun.pop() if begun else await receive()

    async def sent(message: Message) -> None:
        if message["type"] == "websocket.accept":
            await send({"type": ADMITTED})
        elif message["type"].startswith("websocket.http.response."):
            await refuse(message)
        else:
            await send(message)

    return received, sent


def _refusal(send: Send) -> Callable[[Message], Any]:
    """Return what makes a response, for which it is too late, the reason of a close."""
    code, body = _REFUSED, b""

    async def refuse(message: Message) -> None:
        nonlocal code, body
        if message["type"].endswith(".start"):
            code = _LATER if message["status"] == 503 else _REFUSED
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            await send({"type": "websocket.close", "code": code, "reason": _reason(body)})

    return refuse


def _secret(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict) or found.get("op") != OPENING:
        return ""
    secret = found.get("secret")
    return secret if isinstance(secret, str) else ""


def _reason(body: bytes) -> str:
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return ""
    return detail.encode()[:_LONGEST_REASON].decode(errors="ignore")
