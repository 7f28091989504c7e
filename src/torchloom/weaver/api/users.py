"""Answers at the door about people: who may come in, by which token, by which link."""

from typing import Any

from torchloom.weaver import views
from torchloom.weaver.api.request import BadRequest, WeaverRequest
from torchloom.weaver.store.rows import TokenRow, UserRow
from torchloom.weaver.users import COOKIE, LONGEST_LIFE, ROLES, TOKEN, People

KINDS = (TOKEN, COOKIE)


class UserApi:
    """Read the question, have `People` decide, show no more than may be shown."""

    def __init__(self, people: People) -> None:
        self._people = people

    async def users(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        return [_user(user) for user in self._people.users()]

    async def user_put(self, asked: WeaverRequest) -> dict[str, Any]:
        """Make or change a user; what is not said stays."""
        disabled = asked.flag("disabled") if asked.facts.get("disabled") is not None else None
        name, role = asked.text("user") or asked.needed("name"), asked.text("role") or None
        run_as = asked.text("run_as") if asked.facts.get("run_as") is not None else None
        return _user(self._people.put(name, role, disabled, _author(asked), run_as))

    async def tokens(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        return [_token(token) for token in self._people.tokens(asked.text("user"))]

    async def token_add(self, asked: WeaverRequest) -> dict[str, Any]:
        """A new token, with the secret that is never shown again."""
        seconds = asked.seconds("seconds", 0.0, LONGEST_LIFE) or None
        token, secret = self._people.add_token(
            asked.needed("user"),
            asked.text("label"),
            _author(asked),
            seconds,
            key=asked.text("key"),
        )
        return {**_token(token), "token": secret}

    async def token_revoke(self, asked: WeaverRequest) -> dict[str, Any]:
        return _token(self._people.revoke(asked.needed("id"), _author(asked)))

    async def link_add(self, asked: WeaverRequest) -> dict[str, Any]:
        """The code of a new link, which is never shown again; an unknown name becomes a user."""
        name, role, author = asked.needed("user"), asked.text("role"), _author(asked)
        is_new = not self._people.knows(name)
        if role or is_new:
            self._people.put(name, role or ROLES[0], None, author)
        link, code = self._people.add_link(name, author, asked.text("key"))
        shape = {"user": link.user, "role": self._people.role(name), "is_new": is_new}
        return {**shape, "code": code, "expires_at": views.when(link.expires_at)}

    async def link_use(self, asked: WeaverRequest) -> dict[str, Any]:
        """What a link's code is exchanged for: a session's two secrets, or a token."""
        kind = asked.text("kind", COOKIE)
        if kind not in KINDS:
            raise BadRequest(f"kind must be {' or '.join(KINDS)}")
        found = self._people.use_link(asked.needed("code"), kind, asked.text("label"))
        token, secret, proof = found
        shape = {**_token(token), "role": self._people.role(token.user), "token": secret}
        return {**shape, "session": proof} if kind == COOKIE else shape


def _author(asked: WeaverRequest) -> str:
    return asked.needed("author")


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
