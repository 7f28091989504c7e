"""Who is calling: a token or a browser's session, looked up by hash in the database of the plane.

`Identities.who(token)` and `Identities.session(cookies, proof)` return the caller,
`identity_of(connection)` what the guard found for a request or a WebSocket, and
`Identities.watch(identity)` returns when that token or session has ended: the owner of an open
connection awaits it beside its own work, and closes the connection.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from fastapi import Depends
from starlette.requests import HTTPConnection

from torchloom.errors import UserError
from torchloom.weaver.store import StateLost, StateStore
from torchloom.weaver.store.rows import TokenRow, UserRow
from torchloom.weaver.users import COOKIE, ROLES, hash_of, is_good

ENDED = 4401  # the code by which a WebSocket is closed when its token has ended
_FRESH = 1.0  # seconds for which a read of the database is used
_LOOK_AGAIN = 1.0  # seconds between two checks whether a token is still valid
_REMEMBERED = 10_000  # tokens
_LONGEST = 200  # letters of a secret


class CookieRefused(UserError):
    """The cookie of a browser was sent as a token."""

    code = "cookie_refused"
    remedy = "send a token: `loom tokens add USER`, or `loom login URL` with a link"

    def __init__(self) -> None:
        super().__init__("this is the cookie of a browser's session, which is no token")


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
    """Identities of tokens and sessions, read from the database at most a second ago."""

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
