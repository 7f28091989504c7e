"""Who may say and hear what on the plane's NATS: keys made once, and users signed with them.

An operator vouches for one account, the account for its users. A server that knows the operator
takes every user that the account's key has signed, at once and without being told: whoever holds
the key lets an agent in by handing it a file. Users carry their rights in what was signed.
"""

import contextlib
import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.bus import subjects
from torchloom.errors import Failure, shorten
from torchloom.sealed import KEY_NAME
from torchloom.unix import make_private
from torchloom.weaver.plane import tokens

WEAVER, DOOR, PROBE = "weaver", "door", "probe"
_NAME = "torchloom"  # the operator's and the account's, in logs of a server
_RIGHTS = {
    WEAVER: tokens.rights((subjects.EVERYTHING,), (subjects.EVERYTHING,)),
    DOOR: tokens.rights(
        (f"{subjects.PREFIX}.door.*", subjects.DEVICE_EVENTS, subjects.DEVICE_ALERTS),
        (f"{subjects.inbox(DOOR)}.>",),
    ),
    PROBE: tokens.rights((), ()),  # may come in and do nothing there
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
    """The folder with the plane's keys; nobody else can enter it."""

    folder: Path

    @property
    def trusted(self) -> str:
        """What a server's configuration must say to know us: operator, account, nothing secret."""
        return self._read("account.conf")

    def user(self, name: str) -> Path:
        """Return the file by which one of our own users connects."""
        return self.folder / f"{name}.creds"

    def agent(self, agent_id: str) -> Path:
        """Return the file by which one agent connects; it is made when it is asked for first."""
        path = self.folder / "agents" / f"{agent_id}.creds"
        if not path.exists():
            text = self.sign_agent(agent_id)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_secret(path, text)
        return path

    def sign_agent(self, agent_id: str, lifetime: float | None = None) -> str:
        """Return credentials of an agent, which may speak and hear on its own subjects alone."""
        rights, account = _agent_rights(agent_id), self._read("account.nk")
        return tokens.user_credentials(account, f"agent-{agent_id}", rights, lifetime)

    def vouch_for_agent(self, agent_id: str, key: str, lifetime: float) -> str:
        """Return the token of an agent that has made its own key; the public half is given."""
        if not tokens.is_user(key):
            raise ValueError(f"{shorten(key)!r} is no public key of a user")
        rights, account = _agent_rights(agent_id), self._read("account.nk")
        return tokens.user_token(account, key, f"agent-{agent_id}", rights, lifetime)

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
    return tokens.rights(subjects.may_publish(agent_id), subjects.may_subscribe(agent_id))


def strangers_credentials() -> str:
    """Return credentials in which no server of ours can believe; others at every call."""
    return tokens.user_credentials(tokens.account_seed(), PROBE, _RIGHTS[PROBE])


def write_secret(path: Path, text: str) -> None:
    """Write a file that at no moment anybody else can read, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    partial.replace(path)


def _make(folder: Path) -> None:
    """Make all keys aside, then give them their name; of two who do so at once one wins."""
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
    """Give the keys to a folder that has only the key of secrets; one process does so."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_bare(folder):
            for path in aside.iterdir():
                path.replace(folder / path.name)
    finally:
        os.close(lock)


def _first_keys() -> dict[str, str]:
    operator, account = tokens.operator_seed(), tokens.account_seed()
    users = {
        f"{name}.creds": tokens.user_credentials(account, name, rights)
        for name, rights in _RIGHTS.items()
    }
    secrets = {"operator.nk": operator, "account.nk": account}
    return secrets | users | {"account.conf": _trusted(operator, account)}


def _trusted(operator: str, account: str) -> str:
    vouched = tokens.account_token(operator, account, _NAME)
    return (
        f"operator: {tokens.operator_token(operator, _NAME)}\n"
        "resolver: MEMORY\n"
        f"resolver_preload: {{ {tokens.public(account)}: {vouched} }}\n"
    )
