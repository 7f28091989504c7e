"""Answers at the door about people: who may come in, by which token, by which link."""

from typing import Any

from torchloom.weaver import views
from torchloom.weaver.api.request import (
    AddLinkRequest,
    AddTokenRequest,
    BadRequest,
    PutUserRequest,
    RevokeTokenRequest,
    TokensRequest,
    UseLinkRequest,
    WeaverRequest,
)
from torchloom.weaver.store.rows import TokenRow, UserRow
from torchloom.weaver.users import COOKIE, ROLES, TOKEN, People

KINDS = (TOKEN, COOKIE)


class UserApi:
    """Read the question, have `People` decide, show no more than may be shown."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def users(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        return [_user(user) for user in self._people.users()]

    async def user_put(self, asked: PutUserRequest) -> dict[str, Any]:
        """Make or change a user; what is not said stays."""
        name, role = asked.user or asked.name, asked.role or None
        if not name:
            raise BadRequest("name is missing")
        return _user(self._people.put(name, role, asked.disabled, asked.author, asked.run_as))

    async def tokens(self, asked: TokensRequest) -> list[dict[str, Any]]:
        return [_token(token) for token in self._people.tokens(asked.user)]

    async def token_add(self, asked: AddTokenRequest) -> dict[str, Any]:
        """A new token, with the secret that is never shown again."""
        token, secret = self._people.add_token(
            asked.user, asked.label, asked.author, asked.seconds or None, key=asked.key
        )
        return {**_token(token), "token": secret}

    async def token_revoke(self, asked: RevokeTokenRequest) -> dict[str, Any]:
        return _token(self._people.revoke(asked.id, asked.author))

    async def link_add(self, asked: AddLinkRequest) -> dict[str, Any]:
        """The code of a new link, which is never shown again; an unknown name becomes a user."""
        name, role, author = asked.user, asked.role, asked.author
        is_new = not self._people.knows(name)
        if role or is_new:
            self._people.put(name, role or ROLES[0], None, author)
        link, code = self._people.add_link(name, author, asked.key)
        shape = {"user": link.user, "role": self._people.role(name), "is_new": is_new}
        return {**shape, "code": code, "expires_at": views.when(link.expires_at)}

    async def link_use(self, asked: UseLinkRequest) -> dict[str, Any]:
        """What a link's code is exchanged for: a session's two secrets, or a token."""
        if asked.kind not in KINDS:
            raise BadRequest(f"kind must be {' or '.join(KINDS)}")
        found = self._people.use_link(asked.code, asked.kind, asked.label)
        token, secret, proof = found
        shape = {**_token(token), "role": self._people.role(token.user), "token": secret}
        return {**shape, "session": proof} if asked.kind == COOKIE else shape


def _user(user: UserRow) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role,
        "disabled": user.disabled,
        "run_as": user.run_as or None,
        "created_at": views.when(user.created_at),
    }


def _token(token: TokenRow) -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "label": token.label,
        "kind": token.kind,
        "created_at": views.when(token.created_at),
        "expires_at": views.when(token.expires_at),
        "revoked_at": views.when(token.revoked_at),
    }
