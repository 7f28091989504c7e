"""The token of the first start: a file that only this user can read, known to the store."""

import os
import secrets
import stat
from pathlib import Path

from torchloom.errors import Failure
from torchloom.unix import make_private
from torchloom.weaver.people import ADMIN, PREFIX, People

_ID = "first"
_AUTHOR = "loom up"
_LONGEST = 4096  # bytes of a file that holds a token


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


def introduce(people: People, home: Path) -> None:
    """Have the token of the file let `admin` in, instead of the one that was there before."""
    people.know(_ID, ADMIN, _read_or_make(token_file(home)), _AUTHOR)


def _read_or_make(path: Path) -> str:
    try:
        make_private(path.parent)
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise TokenFileUnusable(path, error.strerror or str(error)) from error


def _make(path: Path) -> None:
    """Write a new token that at no moment anybody else can read; of two who do so one wins."""
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
