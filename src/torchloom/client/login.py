"""The plane on another host that this user has chosen: its address, token and fingerprint."""

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from torchloom import settings
from torchloom.client import trust
from torchloom.client.http import TIMEOUT, BadUrl, Client, address
from torchloom.errors import Failure, UserError

_PAGE = "/login"
_TOKEN = "loom_"


class LoginUnusable(Failure):
    """The file with the chosen plane cannot be used."""

    code = "login_unusable"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"cannot use {path}: {why}; `loom login URL` writes it again")


class SecretShown(UserError):
    """A secret was given where every user of this host can read it."""

    code = "secret_in_arguments"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} in a command line can be read by every user of this host and stays in the "
            "shell's history; `loom login URL` asks for it, or reads it from standard input"
        )


class Unpinned(UserError):
    """The fingerprint of this plane was not given."""

    code = "unpinned"

    def __init__(self, url: str, found: str) -> None:
        self.fingerprint = found
        super().__init__(
            f"{url} shows the fingerprint {found}; compare it with what its admin gave you, "
            f"then `loom login {url} --fingerprint {found}`"
        )


@dataclass(frozen=True, slots=True)
class Login:
    """What is kept of a plane that was chosen."""

    url: str
    token: str
    fingerprint: str = ""
    authority: str = ""

    def client(self, timeout: float = TIMEOUT) -> Client:
        """Return the plane as an object."""
        return Client(
            self.url, self.token, self.fingerprint, authority=self.authority, timeout=timeout
        )


def path() -> Path:
    """Return where the chosen plane is kept."""
    return settings.loom_home() / "login.json"


def current() -> Login | None:
    """Return the plane that was chosen, if one was."""
    try:
        fd = os.open(path(), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LoginUnusable(path(), error.strerror or str(error)) from error
    with open(fd, errors="replace") as file:
        found = os.fstat(fd)
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
            raise LoginUnusable(path(), "it must be a file of yours with mode 0600")
        try:
            login = Login(**json.load(file))
        except (ValueError, TypeError) as error:
            raise LoginUnusable(path(), "it is damaged") from error
    if not all(isinstance(value, str) for value in asdict(login).values()):
        raise LoginUnusable(path(), "it is damaged")
    if login.authority:
        trust.checked(login.url, login.authority, login.fingerprint)
    return login


def remember(login: Login) -> None:
    """Keep the chosen plane in a file that no other user can read at any moment."""
    path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path().with_name(f".{path().name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "w") as file:
        json.dump(asdict(login), file)
        file.flush()
        os.fsync(fd)
    partial.replace(path())


def forget() -> bool:
    """Forget the chosen plane; false when none was."""
    with contextlib.suppress(FileNotFoundError):
        path().unlink()
        return True
    return False


def argument(text: str) -> str:
    """Return the address that stands in a command line; a secret there is refused."""
    if text.startswith(_TOKEN):
        raise SecretShown("a token")
    url, mark, code = text.partition("#")
    if mark and code:
        raise SecretShown("the code of a link")
    return address(url.removesuffix(_PAGE))


def pinned(url: str, fingerprint: str) -> str:
    """Return the authority of a plane, if it is the one that is expected; without TLS nothing."""
    if url.startswith("http:"):
        return ""
    authority = trust.fetch(url)
    if not fingerprint:
        raise Unpinned(url, trust.fingerprint(authority))
    return trust.checked(url, authority, fingerprint)


def enter(url: str, secret: str, fingerprint: str = "", authority: str = "") -> Login:
    """Return a plane that accepts us by a token, or by a link whose code this uses up."""
    kept = trust.plain(fingerprint) if authority else ""
    token = _code_or_token(url, secret.strip())
    if not token.startswith(_TOKEN):
        with Client(url, "", kept, authority=authority) as client:
            token = client.login(token, f"loom login on {os.uname().nodename}"[:100])["token"]
    login = Login(url, token, kept, authority)
    with login.client() as client:
        client.me()
    return login


def _code_or_token(url: str, secret: str) -> str:
    """Return the code or token in a pasted secret; a link of another plane is refused."""
    link, mark, code = secret.partition("#")
    if not mark:
        if not secret:
            raise UserError("nothing was given; paste a link or a token")
        return secret
    if urlsplit(link).netloc.lower() != urlsplit(url).netloc:
        raise BadUrl(link, f"is a link to another plane, not to {url}")
    return code
