"""The outermost layer of the server: nothing behind it hears a request that may not be made.

In this order: is it meant for this host, does it come from a page of ours, is there such a route,
who is calling, may they, and was it they or a foreign page that sent the cookie along.
"""

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from torchloom.errors import LoomError
from torchloom.server.auth import COOKIE, Identities, Identity
from torchloom.server.hosts import VARIABLE, Reach
from torchloom.server.policy import OPEN, WEBSOCKET, Policy
from torchloom.server.problems import explained, problem_response

_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_BAD_POLICY = 1008  # the code of a WebSocket for which no HTTP response can be given
_ASK = {"WWW-Authenticate": 'Bearer realm="torchloom"'}


class Guard:
    """Wraps an app. Who is calling is left in `scope["state"]["identity"]`."""

    def __init__(
        self,
        app: ASGIApp,
        identities: Identities,
        reach: Reach,
        policy: Policy | None = None,
        not_found: Callable[[], Response | None] = lambda: None,
    ) -> None:
        """`not_found` returns the page for people who ask for an address that there is not."""
        self.app = app
        self._identities = identities
        self._reach = reach
        self._policy = policy or Policy()
        self._not_found = not_found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http" or _takes_a_response(scope):
            await refusal(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": _BAD_POLICY})

    async def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is not passed on; nothing when it is."""
        foreign = self._foreign(scope)
        if foreign is not None:
            return foreign
        method = WEBSOCKET if scope["type"] == "websocket" else scope["method"]
        verdict = self._policy.judge(method, scope["path"])
        if verdict.role is None:
            shown = self._not_found() if not verdict.methods and _is_for_people(scope) else None
            return shown or _no_route(verdict.methods)
        if verdict.role == OPEN:
            return None
        try:
            identity = await self._identity(scope)
        except LoomError as error:
            return explained(error)
        if identity is None:
            return _unauthenticated()
        if not identity.may(verdict.role):
            return _forbidden(identity, verdict.role)
        if method not in _SAFE and _by_cookie(scope) and not _values(scope, b"origin"):
            return _foreign_origin("this was sent with a cookie and without an Origin")
        scope.setdefault("state", {})["identity"] = identity
        return None

    def _foreign(self, scope: Scope) -> Response | None:
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or hosts[0].lower() not in self._reach.hosts:
            return problem_response(
                421,
                "foreign_host",
                "this server is not called by that Host",
                remedy=f"use the address that `loom up --status` shows, or name it in {VARIABLE}",
            )
        if origins and (len(origins) > 1 or origins[0].lower() not in self._reach.origins):
            return _foreign_origin("this comes from a page of another origin")
        return None

    async def _identity(self, scope: Scope) -> Identity | None:
        shown = _values(scope, b"authorization")
        if not shown:
            return await self._identities.who(_cookie(scope))
        scheme, _, secret = shown[0].partition(" ")
        if len(shown) > 1 or scheme.lower() != "bearer":
            return None
        return await self._identities.who(secret.strip())


def _is_for_people(scope: Scope) -> bool:
    """Tell whether a browser asks for a page: not a program, and not for the API."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    is_api = scope["path"] == "/api" or scope["path"].startswith("/api/")
    return not is_api and any("text/html" in value.lower() for value in _values(scope, b"accept"))


def _by_cookie(scope: Scope) -> bool:
    return not _values(scope, b"authorization")


def _cookie(scope: Scope) -> str:
    """Return our cookie, as it was sent."""
    for text in _values(scope, b"cookie"):
        for pair in text.split(";"):
            name, _, value = pair.partition("=")
            if name.strip() == COOKIE:
                return value.strip().strip('"')
    return ""


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def _takes_a_response(scope: Scope) -> bool:
    return "websocket.http.response" in scope.get("extensions", {})


def _no_route(methods: tuple[str, ...]) -> Response:
    if methods and methods != (WEBSOCKET,):
        allowed = ", ".join(method for method in methods if method != WEBSOCKET)
        return problem_response(
            405, "method_not_allowed", f"this path takes {allowed}", headers={"Allow": allowed}
        )
    return problem_response(404, "not_found", "no such path", remedy="/docs lists what there is")


def _unauthenticated() -> Response:
    return problem_response(
        401,
        "unauthenticated",
        "no token, or none that is known",
        remedy="send `Authorization: Bearer TOKEN`, or open a link of `loom tokens link USER`",
        headers=_ASK,
    )


def _forbidden(identity: Identity, needed: str) -> Response:
    return problem_response(
        403,
        "forbidden",
        f"{identity.user} is {identity.role}, and this takes {needed}",
        remedy="an admin can give that role: `loom tokens add USER --role ROLE`",
    )


def _foreign_origin(why: str) -> Response:
    return problem_response(
        403, "foreign_origin", why, remedy=f"name the origin in {VARIABLE}, if it is yours"
    )
