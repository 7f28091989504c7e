"""Users and their roles, tokens, and links that are valid once.

A secret is shown to its user once and kept nowhere; what is stored is its SHA-256, which is enough
for 256 random bits. A session of a browser has two secrets, and counts with both alone: a cookie,
which a browser sends to every port of a host, and a proof, which only our own pages hold. Every
change is an event with its author, in the same transaction.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchloom import accounts
from torchloom.errors import Failure, NotFound, UserError, shorten
from torchloom.unix import make_private
from torchloom.weaver.events import Journal
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import LinkRow, TokenRow, UserRow

ROLES = ("viewer", "operator", "admin")  # each may do what those before it may
ADMIN = "admin"  # the user of the token in the plane's own folder
TOKEN, COOKIE = "token", "cookie"
PREFIX = "loom_"  # of every token, so that people and scanners recognize one
LINK_LIFETIME, COOKIE_LIFETIME = 86_400.0, 30 * 86_400.0
LONGEST_LIFETIME = 10 * 365 * 86_400.0
_KEPT = 7 * 86_400.0  # seconds in which an expired link is distinguished from an unknown one
_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_LONGEST_LABEL = 200
_ID = "first"
_AUTHOR = "loom up"
_LONGEST = 4096  # bytes of a file that holds a token


class BadName(UserError):
    """This is no name of a user."""

    code = "bad_name"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no user can be called {shorten(name)!r}; a name is up to 64 of a-z 0-9 . _ @ + -, "
            "and begins with a letter or a digit"
        )


class BadRole(UserError):
    """There is no such role."""

    code = "bad_role"

    def __init__(self, role: str) -> None:
        super().__init__(f"no role {shorten(role)!r}; a role is one of {', '.join(ROLES)}")


class BadLabel(UserError):
    """A label that cannot be shown in a line."""

    code = "bad_label"

    def __init__(self) -> None:
        super().__init__(
            f"a label is at most {_LONGEST_LABEL} printable characters; choose a shorter one"
        )


class LastAdmin(UserError):
    """The last admin cannot be disabled or lose the role."""

    code = "last_admin"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last admin; make another user an admin first")


class UserDisabled(UserError):
    """A disabled user gets no token and no link."""

    code = "user_disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"user {name} is disabled; an admin can enable it again")


class LinkRefused(UserError):
    """The link is unknown, expired or used."""

    code = "link_unknown"

    def __init__(self, why: str, code: str = "link_unknown") -> None:
        self.code = code
        super().__init__(f"{why}; ask an admin for a new one (`loom tokens link USER`)")


class KeyUsed(UserError):
    """A request with this key was done before; its secret is shown only once."""

    code = "key_reused"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was made with this key already and is shown only once; ask with another key"
        )


class NoAccount(UserError):
    """A plane that runs as root starts no job of a user without a unix account."""

    code = "no_account"

    def __init__(self, user: str) -> None:
        self.field = "run_as"
        self.remedy = f"`loom tokens user {user} --run-as ACCOUNT`, by an admin on the plane's host"
        super().__init__(
            f"this plane runs as root, and {user} has no unix account of their own to run jobs as"
        )


def hash_of(secret: str) -> str:
    """Return the hash of a secret, which is what is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_good(token: TokenRow, now: float) -> bool:
    """Tell whether a token is valid; a session without a second secret is not."""
    if token.kind == COOKIE and not token.proof:
        return False
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)


class UserRegistry:
    """Users, tokens and links, as stored."""

    def __init__(
        self, state: StateStore, journal: Journal, now: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._journal = journal
        self._now = now

    def users(self) -> list[UserRow]:
        """Return all users, by name."""
        return self._state.find(UserRow)

    def knows(self, name: str) -> bool:
        """Tell whether there is a user of this name."""
        return self._state.one(UserRow, name=name) is not None

    def put(
        self,
        name: str,
        role: str | None,
        disabled: bool | None,
        author: str,
        run_as: str | None = None,
    ) -> UserRow:
        """Add a user, or change one; none leaves a field as it is.

        An empty `run_as` removes the account.
        """
        if not _NAME.fullmatch(name):
            raise BadName(name)
        known = self._state.one(UserRow, name=name)
        before = known or UserRow(name, "", created_at=self._now())
        after = replace(
            before,
            role=before.role if role is None else role,
            disabled=before.disabled if disabled is None else disabled,
            run_as=before.run_as if run_as is None else run_as,
        )
        if after.role not in ROLES:
            raise BadRole(after.role)
        if after == known:
            return known
        self._keep_an_admin(before, after)
        if after.run_as and (run_as or role):
            accounts.check(after.run_as, may_be_root=after.role == ROLES[-1])
        facts = {"user": name, "role": after.role, "disabled": after.disabled}
        facts |= {"run_as": after.run_as} if after.run_as or before.run_as else {}
        with self._state.together():
            self._state.put(after)
            self._journal.note("user_put", author=author, facts=facts)
        return after

    def tokens(self, user: str = "") -> list[TokenRow]:
        """Return the tokens of a user, or all, oldest first."""
        if user:
            self._user(user)
        found = self._state.find(TokenRow, **({"user": user} if user else {}))
        return sorted(found, key=lambda token: (token.created_at, token.id))

    def add_token(
        self,
        user: str,
        label: str,
        author: str,
        seconds: float | None = None,
        key: str = "",
    ) -> tuple[TokenRow, str]:
        """Add a token; return it and its secret, which is not stored."""
        self._enabled(user)
        if key and (made := self._state.find(TokenRow, user=user, key=key)):
            raise KeyUsed(f"token {made[0].id}")
        secret = _secret()
        ends = None if seconds is None else self._now() + seconds
        token = TokenRow(_name(), user, label, hash_of(secret), expires_at=ends, key=key)
        return self._added(token, author), secret

    def revoke(self, token_id: str, author: str) -> TokenRow:
        """Revoke a token; one that is revoked stays as it is."""
        found = self._state.one(TokenRow, id=token_id)
        if found is None:
            raise NotFound("token", token_id, (), "`loom tokens` lists them")
        if found.revoked_at is not None:
            return found
        ended = replace(found, revoked_at=self._now())
        with self._state.together():
            self._state.put(ended)
            self._journal.note("token_revoked", author=author, facts=_about(ended))
        return ended

    def add_link(self, user: str, author: str, key: str = "") -> tuple[LinkRow, str]:
        """Add a link; return it and its code, which is not stored."""
        self._enabled(user)
        if key and self._state.find(LinkRow, user=user, key=key):
            raise KeyUsed("a link")
        code, now = secrets.token_urlsafe(32), self._now()
        link = LinkRow(hash_of(code), user, now + LINK_LIFETIME, None, key)
        with self._state.together():
            old = [each.hash for each in self._state.find(LinkRow) if each.expires_at + _KEPT < now]
            if old:
                self._state.remove(LinkRow, hash=old)
            self._state.put(link)
            self._journal.note("link_added", author=author, facts={"user": user})
        return link, code

    def use_link(self, code: str, kind: str, label: str) -> tuple[TokenRow, str, str]:
        """Exchange the code of a link, once: for a token, or for a session's cookie and proof.

        The proof of a token is empty.
        """
        link = self._state.one(LinkRow, hash=hash_of(code))
        if link is None or not hmac.compare_digest(link.hash, hash_of(code)):
            raise LinkRefused("no such link")
        if link.used_at is not None:
            raise LinkRefused("this link was already used; a link works once", "link_used")
        if self._now() >= link.expires_at:
            raise LinkRefused("this link is older than 24 hours", "link_over")
        self._enabled(link.user)
        with self._state.together():
            self._state.put(replace(link, used_at=self._now()))
            self._journal.note("link_used", author=link.user, facts={"user": link.user})
            return self._by_link(link.user, kind, label)

    def know(self, token_id: str, user: str, secret: str, author: str) -> None:
        """Add a token with a given secret; a repeated call changes nothing."""
        known = self._state.one(TokenRow, id=token_id)
        if known is not None and hmac.compare_digest(known.hash, hash_of(secret)):
            return
        token = TokenRow(token_id, user, "first start", hash_of(secret), created_at=self._now())
        with self._state.together():
            if self._state.one(UserRow, name=user) is None:
                self.put(user, ROLES[-1], False, author)
            self._state.put(token)
            self._journal.note("token_added", author=author, facts=_about(token))

    def account(self, user: str) -> str:
        """Return the unix account that a user's jobs run as; none is the plane's own user.

        A plane that runs as root runs nothing as root but for its own admin, and for an admin who
        was bound to root.
        """
        known = self._user(user)
        if known.run_as:
            found = accounts.check(known.run_as, may_be_root=known.role == ROLES[-1])
            return found.name if found.uid else ""
        if accounts.is_root() and user != ADMIN:
            raise NoAccount(user)
        return ""

    def role(self, user: str) -> str:
        """Return the role of a user."""
        return self._user(user).role

    def _by_link(self, user: str, kind: str, label: str) -> tuple[TokenRow, str, str]:
        secret, proof, ends = _secret(), "", None
        token = TokenRow(_name(), user, label, hash_of(secret), kind)
        if kind == COOKIE:
            proof, ends = secrets.token_urlsafe(32), self._now() + COOKIE_LIFETIME
            token = replace(token, expires_at=ends, proof=hash_of(proof))
        return self._added(token, user), secret, proof

    def _added(self, token: TokenRow, author: str) -> TokenRow:
        if len(token.label) > _LONGEST_LABEL or not token.label.isprintable():
            raise BadLabel
        made = replace(token, created_at=self._now())
        with self._state.together():
            self._state.put(made)
            self._journal.note("token_added", author=author, facts=_about(made))
        return made

    def _user(self, name: str) -> UserRow:
        found = self._state.one(UserRow, name=name)
        if found is None:
            known = [user.name for user in self.users()]
            raise NotFound("user", name, known, f"`loom tokens add {shorten(name)} --role viewer`")
        return found

    def _enabled(self, name: str) -> UserRow:
        found = self._user(name)
        if found.disabled:
            raise UserDisabled(name)
        return found

    def _keep_an_admin(self, before: UserRow, after: UserRow) -> None:
        if _is_admin(before) and not _is_admin(after):
            others = [user for user in self.users() if user.name != before.name]
            if not any(map(_is_admin, others)):
                raise LastAdmin(before.name)


def _secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _name() -> str:
    return f"t-{secrets.token_hex(4)}"


def _is_admin(user: UserRow) -> bool:
    return user.role == ROLES[-1] and not user.disabled


def _about(token: TokenRow) -> dict[str, str]:
    """Return what an event keeps of a token: nothing that is secret."""
    return {"user": token.user, "token": token.id, "label": token.label, "kind": token.kind}


class TokenFileUnusable(Failure):
    """The file of the admin's token is not ours, open to others, or holds no token."""

    code = "token_file_unusable"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot use the admin's token in {path}: {why}; "
            "without that file the next start makes a new one"
        )


def token_file(home: Path) -> Path:
    """Return where the admin's token is."""
    return home / "plane" / "admin.token"


def introduce(users: UserRegistry, home: Path) -> None:
    """Make the token in the file the token of `admin`, instead of the one before."""
    users.know(_ID, ADMIN, _read_or_make(token_file(home)), _AUTHOR)


def _read_or_make(path: Path) -> str:
    try:
        make_private(path.parent)
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise TokenFileUnusable(path, error.strerror or str(error)) from error


def _make(path: Path) -> None:
    """Write a new token that only this user can ever read; of two writers, one wins."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        file.write(f"{PREFIX}{secrets.token_urlsafe(32)}\n")
        file.flush()
        os.fsync(fd)
    partial.replace(path)


def _read(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, errors="replace") as file:
        found = os.fstat(fd)
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
            raise TokenFileUnusable(path, "it must be a file of yours with mode 0600")
        text = file.read(_LONGEST).strip()
    if not text.startswith(PREFIX) or len(text) < len(PREFIX) + 32 or not text.isascii():
        raise TokenFileUnusable(path, "it holds no token")
    return text
