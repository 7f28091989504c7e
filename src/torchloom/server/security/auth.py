"""Who is calling: a token or a browser's session, looked up by hash; and how a session begins.

`Identities.who(token)` and `Identities.session(cookies, proof)` return the caller,
`identity_of(connection)` what the guard found for a request or a WebSocket, and
`Identities.watch(identity)` returns when that token or session has ended: the owner of an open
connection awaits it beside its own work, and closes the connection.
"""

import asyncio
import hmac
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse
from starlette.types import Message, Receive, Scope, Send

from torchloom.errors import UserError
from torchloom.server.pages import STYLE, page
from torchloom.server.problems import ApiProblem
from torchloom.server.security.limits import counted_address
from torchloom.weaver.store import StateLost, StateStore
from torchloom.weaver.store.rows import LinkRow, TokenRow, UserRow
from torchloom.weaver.users import COOKIE, ROLES, hash_of, is_good

ENDED = 4401  # the code by which a WebSocket is closed when its token has ended
_FRESH = 0.1  # seconds, less than a command takes to start: a revoked token is refused by the next
_LOOK_AGAIN = 1.0  # seconds between two checks whether a token is still valid
_REMEMBERED = 10_000  # tokens
_LONGEST = 200  # letters of a secret


class CookieRefused(UserError):
    """The cookie of a browser was sent as a token."""

    code = "cookie_refused"
    remedy = "send a token: `loom tokens add USER`, or `loom login URL` with a link"

    def __init__(self) -> None:
        super().__init__("this is the cookie of a browser's session, which is not a token")


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """A user and the token by which they are known; no secret is in it."""

    user: str
    role: str
    token: str
    kind: str
    proof: str = field(default="", repr=False)  # of a session: the hash of its second secret

    def may(self, role: str) -> bool:
        """Return whether this user's role is at least the required one."""
        return ROLES.index(self.role) >= ROLES.index(role)


Look: TypeAlias = Callable[
    [str, str], CallerIdentity | None
]  # a column of the tokens, and its value


class Identities:
    """Identities of tokens and sessions, read from the database a moment ago."""

    def __init__(self, look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, CallerIdentity]] = {}

    async def who(self, secret: str) -> CallerIdentity | None:
        """Return whose token this is; nothing when it is not known. A cookie is refused."""
        found = await self._by_secret(secret)
        if found is not None and found.kind == COOKIE:
            raise CookieRefused
        return found

    async def session(self, cookies: Iterable[str], proof: str) -> CallerIdentity | None:
        """Return whose session this is, by both of its secrets; nothing when one is wrong."""
        return proven(await self.unproven(cookies), proof) if proof else None

    async def unproven(self, cookies: Iterable[str]) -> tuple[CallerIdentity, ...]:
        """Return the sessions of cookies; each opens nothing until it is `proven`."""
        found = [await self._by_secret(cookie) for cookie in cookies]
        return tuple(each for each in found if each is not None and each.kind == COOKIE)

    async def watch(self, identity: CallerIdentity) -> None:
        """Return when a token is revoked or expired, or its user has fewer rights than before."""
        while True:
            try:
                found = await self._find("id", identity.token)
            except StateLost:  # it cannot be checked whether it is still valid
                return
            if found is None or not found.may(identity.role):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    def forget(self) -> None:
        """Drop the cache, because something has changed."""
        self._known.clear()

    async def _by_secret(self, secret: str) -> CallerIdentity | None:
        if not secret or len(secret) > _LONGEST:
            return None
        return await self._find("hash", hash_of(secret))

    async def _find(self, column: str, value: str) -> CallerIdentity | None:
        key, now = (column, value), self._clock()
        seen = self._known.get(key)
        if seen is not None and now - seen[0] < _FRESH:
            return seen[1]
        found = await asyncio.to_thread(self._look, column, value)
        self._known.pop(key, None)
        if found is not None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = (now, found)
        return found


def identities_of(state: StateStore, now: Callable[[], float] = time.time) -> Identities:
    """Return the identities that a database holds."""

    def look(column: str, value: str) -> CallerIdentity | None:
        token = state.one(TokenRow, **{column: value})
        if token is None or not hmac.compare_digest(str(getattr(token, column)), value):
            return None
        user = state.one(UserRow, name=token.user)
        if user is None or user.disabled or not is_good(token, now()):
            return None
        return CallerIdentity(user.name, user.role, token.id, token.kind, token.proof)

    return Identities(look)


def proven(sessions: Iterable[CallerIdentity], proof: str) -> CallerIdentity | None:
    """Return the session of which this is the second secret; nothing when it is of none."""
    if not proof or len(proof) > _LONGEST:
        return None
    shown = hash_of(proof)
    good = [each for each in sessions if each.proof and hmac.compare_digest(each.proof, shown)]
    return good[0] if good else None


def identity_of(connection: HTTPConnection) -> CallerIdentity:
    """Return the identity of a request, as the guard found it."""
    identity: CallerIdentity = connection.scope["state"]["identity"]
    return identity


Who = Annotated[CallerIdentity, Depends(identity_of)]


_FREE = 10  # failures without a wait
_FIRST, _LONGEST_CODE = 2.0, 900.0  # seconds to wait, doubled by each failure behind those
_FORGOTTEN = 3600.0  # seconds without a failure
_KEYS = 10_000  # that are remembered; the one that was quiet longest is forgotten
HEADER: Final = "X-Loom-Session"
STORED: Final = "loom-session"  # the name under which a page keeps the secret
OPENING: Final = "session"  # the `op` of a WebSocket's first message
ADMITTED: Final = "torchloom.admitted"  # sent where the app accepts a socket that is open already
UNPROVEN: Final = "torchloom.unproven"  # marks the accept of a socket that awaits its secret
_PATIENCE = 5.0  # seconds for the first message
_REFUSED, _LATER = 1008, 1013
_MOST = 4  # cookies of one name that are checked
_LONGEST_REASON = 120  # bytes of a close frame are few
_USUAL = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_STORE = f"""
const memory = (use) => {{ try {{ return use(localStorage); }} catch {{ return null; }} }};
const kept = () => memory((it) => it.getItem("{STORED}")) || "";
const keep = (secret) => memory((it) => (it.setItem("{STORED}", secret), true));
const shown = () => (kept() ? {{"{HEADER}": kept()}} : {{}});
const say = (text) => document.querySelector("p").textContent = text;
const HOW = "Sign in with a one-time link: `loom open` makes one on the plane's own host, "
  + "elsewhere an admin does (loom tokens link USER).";
"""
_SCRIPT = """
const code = location.hash.slice(1), job = new URLSearchParams(location.search).get("job");
const enter = (found) => {
  if (!keep(found.session)) {
    say("This browser stores nothing for this page, so you cannot stay signed in. "
      + "Allow storage for this address, then open a new link.");
  } else {
    say(`Signed in as ${found.user} (${found.role}).`);
    leave();
  }
};
history.replaceState(null, "", location.pathname);
if (!code) say(HOW);
else fetch("/api/login", {
  method: "POST",
  headers: {"Content-Type": "application/json", ...shown()},
  body: JSON.stringify({code}),
}).then(async (answer) => {
  const found = await answer.json();
  if (answer.ok) enter(found);
  else say(found.detail);
}).catch(() => say("The server does not answer. The link may still be valid: open it again."));
"""
_AGAIN = """
const show = async (answer) => {
  const text = await answer.text();
  if ((answer.headers.get("Content-Type") || "").startsWith("text/html")) {
    const found = new DOMParser().parseFromString(text, "text/html");
    document.title = found.title;
    document.body.replaceChildren(...found.body.childNodes);
  } else {
    const plain = document.createElement("pre");
    plain.textContent = text;
    document.body.replaceChildren(plain);
  }
};
if (!kept()) say(HOW);
else fetch(location.href, {headers: {Accept: "application/json, */*;q=0.5", ...shown()}}).then(
  async (answer) => answer.ok ? show(answer) : say(`${(await answer.json()).detail}. ${HOW}`)
).catch(() => say("The server does not answer. Load this page again."));
"""
_LEAVE = """
const leave = () => %s;"""
_DASHBOARD = 'location.replace(job ? `/jobs/${encodeURIComponent(job)}` : "/")'
_NOWHERE = "undefined"
_STYLE = "body{font:16px system-ui;margin:20vh auto;max-width:36em;padding:0 1em}"
_BODY = "<h1>torchLoom</h1><p>Signing you in.</p>"


@dataclass(frozen=True, slots=True)
class Claim:
    """The code of a link: its user, if it is known, and whether it is valid."""

    account: str
    is_good: bool


def claim_of(state: StateStore, code: str, now: float) -> Claim:
    """Look up the code of a link by its hash; the weaver marks it as used."""
    link = state.one(LinkRow, hash=hash_of(code))
    if link is None or not hmac.compare_digest(link.hash, hash_of(code)):
        return Claim("", is_good=False)
    return Claim(link.user, link.used_at is None and now < link.expires_at)


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last: float
    until: float  # when the next one is looked at


class Attempts:
    """Failures in this process' memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def check(self, address: str, account: str = "") -> None:
        """Refuse an invalid link after too many invalid ones."""
        failures = self._failed.get(_key(address, account))
        now = self._clock()
        if failures is None or now >= failures.until:
            return
        wait = str(int(failures.until - now) + 1)
        raise ApiProblem(
            429,
            "too_many_logins",
            f"{failures.count} links from this address were refused",
            remedy=f"wait {wait} s, or use a new link, which is accepted at once",
            headers={"Retry-After": wait},
        )

    def failed(self, address: str, account: str = "") -> None:
        """Remember a failure."""
        key, now = _key(address, account), self._clock()
        before = self._failed.get(key)
        count = 1 if before is None or now - before.last >= _FORGOTTEN else before.count + 1
        doublings = min(count - _FREE, 30)
        wait = 0.0 if doublings < 0 else min(_FIRST * 2**doublings, _LONGEST_CODE)
        self._failed[key] = _Failures(count, now, now + wait)
        self._failed.move_to_end(key)
        while len(self._failed) > _KEYS:
            self._failed.popitem(last=False)


def _key(address: str, account: str) -> tuple[str, str]:
    return counted_address(address), account


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


def login_page(has_dashboard: bool) -> HTMLResponse:
    """Return the page; once signed in, a browser is led to the dashboard, where there is one.

    A link may name a job (`/login?job=ID#CODE`): then it is led to the job's page.
    """
    leave = _LEAVE % (_DASHBOARD if has_dashboard else _NOWHERE)
    return page("torchLoom", _STYLE, _BODY, _STORE + leave + _SCRIPT)


def session_page() -> HTMLResponse:
    """Return the page for an address that a browser was led to: it asks again with the secret.

    Following a link a browser sends the cookie alone. So does the server of another port.
    """
    body = "<h1>torchLoom</h1><p>Loading.</p>"
    return page("torchLoom", STYLE, body, _STORE + _AGAIN, 401)
