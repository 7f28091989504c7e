"""The outermost layer of the server: a request that is not allowed does not pass it.

In this order: is it meant for this host, does it come from a page of ours, is there such a route,
who is calling, may they, and was it they or a foreign page that sent the cookie along. A browser's
WebSocket is opened here, and passed on when its first message was the second secret of its session.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.errors import LoomError, UserError, shorten
from torchloom.server.problems import explained, problem_response
from torchloom.server.security.auth import (
    ENDED,
    CallerIdentity,
    CookieRefused,
    Identities,
    cookies_of,
    first_message,
    opened,
    proof_of,
    proven,
    session_page,
    values,
)
from torchloom.server.security.policy import OPEN, WEBSOCKET, AccessPolicy

VARIABLE = "LOOM_ORIGINS"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PORTS = {"http": 80, "https": 443}
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_BAD_POLICY = 1008  # the code of a WebSocket for which no HTTP response can be given
_SIGN_IN = "this browser is not signed in, or no longer; sign in again"
_HEADERS = (  # of every response that does not set them itself
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_ASK = {"WWW-Authenticate": 'Bearer realm="torchloom"'}


class BadOrigin(UserError):
    """A value that is not an origin."""

    code = "bad_origin"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{VARIABLE} has {shorten(text)!r}, which is not an origin; "
            "write scheme://host:port as a browser does, without a path: http://localhost:9000"
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """The values of `Host` and of `Origin` that are ours; every other is foreign."""

    hosts: frozenset[str]
    origins: frozenset[str]


def reach(port: int, host: str = "", extra: str = "", tls: bool = False) -> Reach:
    """Return how a server may be called: by loopback names, its own address, and named origins."""
    scheme = "https" if tls else "http"
    names = (*_LOOPBACK, *([_bracketed(host)] if host else []))
    ours = [(scheme, name, port) for name in names]
    named = [_origin(word) for word in extra.replace(",", " ").split()]
    return Reach(frozenset(_hosts([*ours, *named])), frozenset(_origins([*ours, *named])))


def _origin(text: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise BadOrigin(text) from None
    plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in _PORTS or not host or not plain or "*" in host:
        raise BadOrigin(text)
    return parts.scheme, _bracketed(host), port or _PORTS[parts.scheme]


def _hosts(places: Iterable[tuple[str, str, int]]) -> Iterable[str]:
    for scheme, name, port in places:
        yield f"{name}:{port}"
        if port == _PORTS[scheme]:
            yield name


def _origins(places: Iterable[tuple[str, str, int]]) -> Iterable[str]:
    for scheme, name, port in places:
        usual = port == _PORTS[scheme]
        yield f"{scheme}://{name}" if usual else f"{scheme}://{name}:{port}"


def _bracketed(host: str) -> str:
    plain = host.strip("[]").lower()
    return f"[{plain}]" if ":" in plain else plain


@dataclass(frozen=True, slots=True)
class _Unproven:
    """Sessions of which a WebSocket has shown one secret, and the role that it needs."""

    sessions: tuple[CallerIdentity, ...]
    role: str


class RequestGuard:
    """Wraps an app. Who is calling is left in `scope["state"]["identity"]`."""

    def __init__(
        self,
        app: ASGIApp,
        identities: Identities,
        reach: Reach,
        policy: AccessPolicy | None = None,
        not_found: Callable[[], Response | None] = lambda: None,
    ) -> None:
        """`not_found` returns the page for an address that does not exist."""
        self.app = app
        self._identities = identities
        self._reach = reach
        self._policy = policy or AccessPolicy()
        self._not_found = not_found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        if scope["type"] == "http":
            send = _with_headers(send)
        refusal = await self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
        elif isinstance(refusal, _Unproven):
            await self._prove(refusal, scope, receive, send)
        elif scope["type"] == "http" or _takes_a_response(scope):
            await refusal(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": _BAD_POLICY})

    async def _prove(self, asked: _Unproven, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a WebSocket on when its first message is the second secret of its session."""
        session = proven(asked.sessions, await first_message(receive, send))
        if session is None:
            await send({"type": "websocket.close", "code": ENDED, "reason": _SIGN_IN})
        elif not session.may(asked.role):
            words = _too_small(session, asked.role)
            await send({"type": "websocket.close", "code": _BAD_POLICY, "reason": words})
        else:
            scope.setdefault("state", {})["identity"] = session
            await self.app(scope, *opened(receive, send))

    async def _refusal(self, scope: Scope) -> Response | _Unproven | None:
        """Return why a request is not passed on, or not yet; nothing when it is."""
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
            if method == WEBSOCKET and _by_cookie(scope):
                return await self._unproven(scope, verdict.role)
            return await self._unauthorized(scope, verdict.role)
        except CookieRefused as error:
            return problem_response(401, error.code, str(error), "", error.remedy, _ASK)
        except LoomError as error:
            return explained(error)

    async def _unauthorized(self, scope: Scope, role: str) -> Response | None:
        """Return why a caller is refused; the identity of an allowed one is stored in the scope."""
        identity = await self._identity(scope)
        if identity is None:
            return _unauthenticated(scope)
        if not identity.may(role):
            return _forbidden(identity, role)
        if scope.get("method") not in _SAFE and _is_bare(scope):
            return _no_origin()
        scope.setdefault("state", {})["identity"] = identity
        return None

    async def _unproven(self, scope: Scope, role: str) -> Response | _Unproven:
        """Return the sessions that a WebSocket's cookies name; each opens nothing by itself."""
        found = await self._identities.unproven(cookies_of(scope))
        if not found:
            return _unauthenticated(scope)
        return _no_origin() if _is_bare(scope) else _Unproven(found, role)

    def _foreign(self, scope: Scope) -> Response | None:
        hosts, origins = values(scope, "host"), values(scope, "origin")
        if len(hosts) != 1 or hosts[0].lower() not in self._reach.hosts:
            return problem_response(
                421,
                "foreign_host",
                "the Host header does not name this server",
                remedy=f"use the address that `loom up --status` shows, or name it in {VARIABLE}",
            )
        if origins and (len(origins) > 1 or origins[0].lower() not in self._reach.origins):
            return _foreign_origin("this request comes from a page of another origin")
        return None

    async def _identity(self, scope: Scope) -> CallerIdentity | None:
        shown = values(scope, "authorization")
        if not shown:
            return await self._identities.session(cookies_of(scope), proof_of(scope))
        scheme, _, secret = shown[0].partition(" ")
        if len(shown) > 1 or scheme.lower() != "bearer":
            return None
        return await self._identities.who(secret.strip())


def _with_headers(send: Send) -> Send:
    """Return what sends a response with the headers that a browser is to have of every one."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            names = {name.lower() for name, _ in own}
            message["headers"] = [*own, *(each for each in _HEADERS if each[0] not in names)]
        await send(message)

    return sent


def _is_for_people(scope: Scope) -> bool:
    """Return whether a browser requests a page, not a program and not the API."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    is_api = scope["path"] == "/api" or scope["path"].startswith("/api/")
    return not is_api and any("text/html" in value.lower() for value in values(scope, "accept"))


def _by_cookie(scope: Scope) -> bool:
    return not values(scope, "authorization")


def _is_bare(scope: Scope) -> bool:
    """Return whether a cookie came without the Origin that every page of this server sends."""
    return _by_cookie(scope) and not values(scope, "origin")


def _takes_a_response(scope: Scope) -> bool:
    return "websocket.http.response" in scope.get("extensions", {})


def _no_route(methods: tuple[str, ...]) -> Response:
    if methods and methods != (WEBSOCKET,):
        allowed = ", ".join(method for method in methods if method != WEBSOCKET)
        return problem_response(
            405, "method_not_allowed", f"this path takes {allowed}", headers={"Allow": allowed}
        )
    return problem_response(404, "not_found", "no such path", remedy="/docs lists the paths")


def _unauthenticated(scope: Scope) -> Response:
    """Return the response for an unknown caller; a browser's page retries by itself."""
    if _by_cookie(scope) and _is_for_people(scope):
        shown = session_page()
        shown.headers.update(_ASK)
        return shown
    if _by_cookie(scope) and (cookies_of(scope) or proof_of(scope)):
        return problem_response(
            401,
            "sign_in_again",
            f"{_SIGN_IN} (a cookie counts only with the secret that the login page stored)",
            remedy="open the dashboard with `loom open`, or a link of `loom tokens link USER`",
            headers=_ASK,
        )
    return problem_response(
        401,
        "unauthenticated",
        "no token, or an unknown one",
        remedy="send `Authorization: Bearer TOKEN`, or open a link of `loom tokens link USER`",
        headers=_ASK,
    )


def _forbidden(identity: CallerIdentity, needed: str) -> Response:
    return problem_response(
        403,
        "forbidden",
        _too_small(identity, needed),
        remedy=f"an admin can give that role: `loom tokens user {identity.user} --role {needed}`",
    )


def _too_small(identity: CallerIdentity, needed: str) -> str:
    return f"{identity.user} is {identity.role}, and this takes {needed}"


def _no_origin() -> Response:
    return _foreign_origin("this request has a cookie but no Origin")


def _foreign_origin(why: str) -> Response:
    return problem_response(
        403, "foreign_origin", why, remedy=f"name the origin in {VARIABLE}, if it is yours"
    )
