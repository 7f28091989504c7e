"""Variables of a job that are secret: stored encrypted, shown as stars, plain for its ranks alone.

A spec has `HF_TOKEN: secret:VALUE`. What is written to a database or a run's folder is
`sealed:...`, encrypted and authenticated by a key of this state folder; the launch process opens it
when it starts a rank. Sealing is deterministic (AES-SIV), so that a submit that is
repeated with its key is known as the same one. A sealed value is good for one name only.
"""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure
from torchloom.unix import make_private, open_private

SECRET, SEALED = "secret:", "sealed:"
KEY_NAME = "secrets.key"
HIDDEN = f"{SECRET}***"
LONGEST = 3000  # characters of a secret: sealed, it must fit where other values do
_KEY_BYTES = 64  # two keys of AES-256


class SecretUnusable(Failure):
    """A secret that cannot be sealed or opened here."""

    code = "secret_unusable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"cannot use the secret {name}: {why}; submit the job again with its value"
        )


def seal(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables as they may be stored; the key is made when it is needed first."""
    if not any(value.startswith(SECRET) for value in env.values()):
        return dict(env)
    key = _key(is_new_allowed=True)
    return {
        name: _sealed(key, name, value.removeprefix(SECRET)) if value.startswith(SECRET) else value
        for name, value in env.items()
    }


def unseal(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables as a rank has them."""
    return {name: _opened(name, value) for name, value in env.items()}


def hide(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables as they may be shown."""
    return {
        name: HIDDEN if str(value).startswith((SECRET, SEALED)) else value
        for name, value in env.items()
    }


def hide_in_spec(spec: Any) -> Any:
    """Return the spec of a job, or an app with roles, as it may be shown."""
    return _with_env(spec, hide)


def seal_in_spec(spec: Any) -> Any:
    """Return the spec of a job, or an app with roles, as it may be stored."""
    return _with_env(spec, seal)


def reveal_in_spec(spec: Any) -> Any:
    """Return a stored spec with its secrets as they were submitted, to be sealed by another key."""
    return _with_env(spec, _reveal)


def _reveal(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: SECRET + _opened(name, value) if value.startswith(SEALED) else value
        for name, value in env.items()
    }


def _with_env(spec: Any, change: Any) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    changed = dict(spec)
    if isinstance(spec.get("env"), Mapping):
        changed["env"] = change(spec["env"])
    if isinstance(spec.get("roles"), list | tuple):
        changed["roles"] = [_with_env(role, change) for role in spec["roles"]]
    return changed


def _sealed(key: bytes, name: str, value: str) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    if not value or value == HIDDEN.removeprefix(SECRET) or len(value) > LONGEST:
        raise SecretUnusable(name, f"it must be the value itself, 1 to {LONGEST} characters")
    data = AESSIV(key).encrypt(value.encode(), [name.encode()])
    return SEALED + base64.urlsafe_b64encode(data).decode()


def _opened(name: str, value: str) -> str:
    if not value.startswith(SEALED):
        return value.removeprefix(SECRET)
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    try:
        data = base64.urlsafe_b64decode(value.removeprefix(SEALED))
        return AESSIV(_key(is_new_allowed=False)).decrypt(data, [name.encode()]).decode()
    except (InvalidTag, ValueError) as error:
        raise SecretUnusable(name, "it was sealed with another key, or for another name") from error
    except OSError as error:
        raise SecretUnusable(name, f"{_folder() / KEY_NAME}: {error.strerror}") from error


def _folder() -> Path:
    return settings.loom_home() / "plane" / "keys"


def _key(is_new_allowed: bool) -> bytes:
    """Return the key of this state folder, which is closed to others."""
    folder = _folder()
    if is_new_allowed:
        make_private(folder)
    within = open_private(folder)
    try:
        if is_new_allowed:
            _make(within)
        with open(os.open(KEY_NAME, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=within), "rb") as file:
            key = file.read()
    finally:
        os.close(within)
    if len(key) != _KEY_BYTES:
        raise SecretUnusable("key", f"{folder / KEY_NAME} is damaged")
    return key


def _make(within: int) -> None:
    """Make the key unless there is one; of two who do so at once, one wins."""
    partial = f".{KEY_NAME}.{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        os.stat(KEY_NAME, dir_fd=within, follow_symlinks=False)
        return
    except FileNotFoundError:
        pass
    try:
        with open(os.open(partial, flags, 0o600, dir_fd=within), "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, KEY_NAME, src_dir_fd=within, dst_dir_fd=within)
    except FileExistsError:
        pass
    finally:
        os.unlink(partial, dir_fd=within)
