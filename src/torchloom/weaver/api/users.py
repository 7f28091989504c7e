"""Requests about users, their tokens and their links."""

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
from torchloom.weaver.users import COOKIE, ROLES, TOKEN, UserRegistry

KINDS = (TOKEN, COOKIE)


class UserApi:
    """Users, tokens and links, without their secrets."""

    def __init__(self, users: UserRegistry) -> None:
        self._users = users

    async def users(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        return [_user(user) for user in self._users.users()]

    async def user_put(self, asked: PutUserRequest) -> dict[str, Any]:
        """Add or change a user; what is left out stays."""
        name, role = asked.user or asked.name, asked.role or None
        if not name:
            raise BadRequest("name is missing")
        return _user(self._users.put(name, role, asked.disabled, asked.author, asked.run_as))

    async def tokens(self, asked: TokensRequest) -> list[dict[str, Any]]:
        return [_token(token) for token in self._users.tokens(asked.user)]

    async def token_add(self, asked: AddTokenRequest) -> dict[str, Any]:
        """Return a new token with its secret, which is shown only once."""
        token, secret = self._users.add_token(
            asked.user, asked.label, asked.author, asked.seconds or None, key=asked.key
        )
        return {**_token(token), "token": secret}

    async def token_revoke(self, asked: RevokeTokenRequest) -> dict[str, Any]:
        return _token(self._users.revoke(asked.id, asked.author))

    async def link_add(self, asked: AddLinkRequest) -> dict[str, Any]:
        """Return the code of a new link, which is shown only once; an unknown user is added."""
        name, role, author = asked.user, asked.role, asked.author
        is_new = not self._users.knows(name)
        if role or is_new:
            self._users.put(name, role or ROLES[0], None, author)
        link, code = self._users.add_link(name, author, asked.key)
        shape = {"user": link.user, "role": self._users.role(name), "is_new": is_new}
        return {**shape, "code": code, "expires_at": views.when(link.expires_at)}

    async def link_use(self, asked: UseLinkRequest) -> dict[str, Any]:
        """Exchange the code of a link for the two secrets of a session, or for a token."""
        if asked.kind not in KINDS:
            raise BadRequest(f"kind must be {' or '.join(KINDS)}")
        found = self._users.use_link(asked.code, asked.kind, asked.label)
        token, secret, proof = found
        shape = {**_token(token), "role": self._users.role(token.user), "token": secret}
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
