"""Who may publish and subscribe on the plane's NATS: keys made once, and users signed with them.

An operator vouches for one account, the account for its users. A server that knows the operator
accepts every user that the account's key has signed, without a change of its configuration: the
holder of the key admits an agent by giving it a file. Users carry their rights in the signed token.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys

from torchloom import settings
from torchloom.bus import subjects
from torchloom.errors import Failure, shorten
from torchloom.sealed import KEY_NAME
from torchloom.unix import make_private

_UNLIMITED = -1
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_VERSION = 2  # of the claims
_PUBLIC = 56  # letters of a public key
WEAVER, DOOR, PROBE = "weaver", "door", "probe"
_NAME = "torchloom"  # the operator's and the account's, in logs of a server


def operator_seed() -> str:
    """Return a new key of an operator, the secret half."""
    return _seed(nkeys.PREFIX_BYTE_OPERATOR)


def account_seed() -> str:
    """Return a new key of an account, the secret half."""
    return _seed(nkeys.PREFIX_BYTE_ACCOUNT)


def public(seed: str) -> str:
    """Return the public half of a key."""
    key: bytes = nkeys.from_seed(bytearray(seed, "ascii")).public_key
    return key.decode()


def sign(seed: str, data: bytes) -> bytes:
    """Return the signature of data by the key that a seed stands for."""
    signature: bytes = nkeys.from_seed(bytearray(seed, "ascii")).sign(data)
    return signature


def operator_token(operator: str, name: str) -> str:
    """Return the self-signed token of an operator."""
    return _token(operator, public(operator), name, {"type": "operator"})


def account_token(operator: str, account: str, name: str) -> str:
    """Return the token of an account, signed by the operator, without limits."""
    limits = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), _UNLIMITED
    )
    facts = {"type": "account", "limits": {**limits, "wildcards": True}}
    return _token(operator, public(account), name, facts)


def user_credentials(
    account: str, name: str, rights: Mapping[str, Any], lifetime: float | None = None
) -> str:
    """Return the text of a credentials file for a new user: a token and a key."""
    seed = _seed(nkeys.PREFIX_BYTE_USER)
    token = user_token(account, public(seed), name, rights, lifetime)
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def user_token(
    account: str, key: str, name: str, rights: Mapping[str, Any], lifetime: float | None = None
) -> str:
    """Return the token of a user, by its public key, signed by the account."""
    limits = dict.fromkeys(("subs", "data", "payload"), _UNLIMITED)
    facts = {"type": "user", "allowed_connection_types": ["STANDARD"], **limits, **rights}
    return _token(account, key, name, facts, lifetime)


def is_user(key: str) -> bool:
    """Tell whether this is the public half of a user's key."""
    try:
        prefix = base64.b32decode(f"{key}{'=' * (-len(key) % 8)}")[0]
    except (ValueError, IndexError):
        return False
    return prefix == nkeys.PREFIX_BYTE_USER and len(key) == _PUBLIC


def rights(publish: Sequence[str], subscribe: Sequence[str]) -> dict[str, Any]:
    """Return the rights of a user: exactly these; without any, all subjects are denied."""
    return {"pub": _only(publish), "sub": _only(subscribe)}


def _only(allowed: Sequence[str]) -> dict[str, list[str]]:
    return {"allow": list(allowed)} if allowed else {"deny": [">"]}


def _seed(prefix: int) -> str:
    seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
    return seed.decode()


def _token(
    issuer: str, subject: str, name: str, facts: Mapping[str, Any], lifetime: float | None = None
) -> str:
    now = time.time()
    claims = {"iat": int(now), "iss": public(issuer), "name": name, "sub": subject}
    if lifetime is not None:
        claims["exp"] = int(now + lifetime)
    claims["nats"] = {**facts, "version": _VERSION}
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_base64(_json(_HEADER))}.{_base64(_json(claims))}"
    return f"{signed}.{_base64(sign(issuer, signed.encode()))}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


_RIGHTS = {
    WEAVER: rights((subjects.EVERYTHING,), (subjects.EVERYTHING,)),
    DOOR: rights(
        (f"{subjects.PREFIX}.door.*", subjects.DEVICE_EVENTS, subjects.DEVICE_ALERTS),
        (f"{subjects.inbox(DOOR)}.>",),
    ),
    PROBE: rights((), ()),  # may connect, and nothing else
}


class KeysUnusable(Failure):
    """The keys belong to another user, cannot be made, or are not all there."""

    code = "keys_unusable"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot use the plane's keys in {path}: {why}; "
            "without that folder `loom up` makes new ones"
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """The folder with the plane's keys; no other user can enter it."""

    folder: Path

    @property
    def trusted(self) -> str:
        """What a server's configuration must contain: our operator and account, nothing secret."""
        return self._read("account.conf")

    def user(self, name: str) -> Path:
        """Return the credentials file of one of our own users."""
        return self.folder / f"{name}.creds"

    def agent(self, agent_id: str) -> Path:
        """Return the credentials file of one agent; it is made at the first call."""
        path = self.folder / "agents" / f"{agent_id}.creds"
        if not path.exists():
            text = self.sign_agent(agent_id)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_secret(path, text)
        return path

    def sign_agent(self, agent_id: str, lifetime: float | None = None) -> str:
        """Return credentials of an agent, which may use its own subjects alone."""
        rights, account = _agent_rights(agent_id), self._read("account.nk")
        return user_credentials(account, f"agent-{agent_id}", rights, lifetime)

    def vouch_for_agent(self, agent_id: str, key: str, lifetime: float) -> str:
        """Return the token of an agent that has made its own key; the public half is given."""
        if not is_user(key):
            raise ValueError(f"{shorten(key)!r} is not the public key of a user")
        rights, account = _agent_rights(agent_id), self._read("account.nk")
        return user_token(account, key, f"agent-{agent_id}", rights, lifetime)

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except OSError as error:
            raise KeysUnusable(self.folder, f"{name}: {error.strerror}") from error


def credentials(home: Path | None = None) -> Credentials:
    """Return this user's keys; at the first start they are made, all of them or none."""
    folder = (home or settings.loom_home()) / "plane" / "keys"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_bare(folder):
            _make(folder)
        make_private(folder)
    except OSError as error:
        raise KeysUnusable(folder, error.strerror or str(error)) from error
    return Credentials(folder)


def _agent_rights(agent_id: str) -> dict[str, Any]:
    if agent_id in _RIGHTS:
        raise ValueError(f"no agent can be called {agent_id!r}: that user exists")
    return rights(subjects.may_publish(agent_id), subjects.may_subscribe(agent_id))


def strangers_credentials() -> str:
    """Return new credentials that no server of ours accepts."""
    return user_credentials(account_seed(), PROBE, _RIGHTS[PROBE])


def write_secret(path: Path, text: str) -> None:
    """Write a file that no other user can read at any moment, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    partial.replace(path)


def _make(folder: Path) -> None:
    """Make all keys in a temporary folder, then rename it; of two processes one wins."""
    aside = folder.with_name(f"keys.new-{os.uname().nodename}-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    try:
        for name, text in _first_keys().items():
            write_secret(aside / name, text)
        with contextlib.suppress(OSError):  # there by now: then those are the keys
            aside.rename(folder)
        if aside.exists():
            _move_into(folder, aside)
        folder.lstat()
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_bare(folder: Path) -> bool:
    """Tell whether there are no keys yet: no folder, or one with the key of secrets alone."""
    return not folder.exists() or all(name.endswith(KEY_NAME) for name in os.listdir(folder))


def _move_into(folder: Path, aside: Path) -> None:
    """Move the keys into a folder that has only the key of secrets; one process succeeds."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_bare(folder):
            for path in aside.iterdir():
                path.replace(folder / path.name)
    finally:
        os.close(lock)


def _first_keys() -> dict[str, str]:
    operator, account = operator_seed(), account_seed()
    users = {
        f"{name}.creds": user_credentials(account, name, rights) for name, rights in _RIGHTS.items()
    }
    secrets = {"operator.nk": operator, "account.nk": account}
    return secrets | users | {"account.conf": _trusted(operator, account)}


def _trusted(operator: str, account: str) -> str:
    vouched = account_token(operator, account, _NAME)
    return (
        f"operator: {operator_token(operator, _NAME)}\n"
        "resolver: MEMORY\n"
        f"resolver_preload: {{ {public(account)}: {vouched} }}\n"
    )
