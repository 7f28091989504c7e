"""Find out whether the NATS server at an address is ours, without publishing anything there.

Ours refuses connections without credentials and those of strangers, and accepts ours: it knows our
account. The client sends CONNECT and PING and closes; that is no message, makes no subject and
leaves nothing behind. A server that accepts everyone does not even get our credentials.
"""

import base64
import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torchloom import settings
from torchloom.bus.nats import credentials
from torchloom.bus.nats.credentials import split
from torchloom.errors import UserError, shorten
from torchloom.plane.credentials import PROBE, Credentials, sign, strangers_credentials

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
_FIRST_PERSON = 1000  # user ids below it are the system's own
_PATIENCE = 3.0  # seconds for a server to answer
_LONGEST_LINE = 1 << 16


def listens(port: int) -> bool:
    """Tell whether a process listens at this port, as far as the kernel shows."""
    return bool(_owners(port))


def trustworthy(port: int) -> bool:
    """Tell whether all listeners at this port are ours or the system's; true if unknown."""
    owners = _owners(port)
    if not owners:
        return sys.platform != "linux"
    return all(uid == os.getuid() or uid < _FIRST_PERSON for uid in owners)


def _owners(port: int) -> set[int]:
    owners = set()
    for table in _TABLES:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                owners.add(int(words[7]))
    return owners


class NatsOwner(Enum):
    """Who owns the server at an address."""

    NONE = "no server answers"
    FOREIGN = "it does not know our credentials"
    OURS = "ours"


class BadNatsAddress(UserError):
    """This is no address of a NATS server."""

    code = "bad_address"

    def __init__(self, text: str) -> None:
        super().__init__(f"{shorten(text)!r} is not a NATS address; write nats://HOST:4222")


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """The address of a server; `chosen` when the user named it."""

    host: str
    port: int
    tls: bool = False
    chosen: bool = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        return self.host in settings.LOOPBACK_NAMES


def named(env: Mapping[str, str]) -> NatsAddress:
    """Return the address that the environment names, or the one where NATS usually is."""
    text = credentials.chosen(env)
    parts = urlsplit(text or credentials.DEFAULT)
    try:
        port = parts.port or credentials.DEFAULT_PORT
    except ValueError:
        raise BadNatsAddress(text) from None
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise BadNatsAddress(text)
    return NatsAddress(parts.hostname, port, parts.scheme == "tls", bool(text))


def owner_of(address: NatsAddress, keys: Credentials, authority: Path | None = None) -> NatsOwner:
    """Return the owner of the server at an address; nothing is published there."""
    if not address.chosen and address.is_local and not trustworthy(address.port):
        return NatsOwner.FOREIGN if listens(address.port) else NatsOwner.NONE
    ours = keys.user(PROBE).read_text()
    try:
        for credentials, welcome in ((None, False), (strangers_credentials(), False), (ours, True)):
            if _enters(address, credentials, authority) is not welcome:
                return NatsOwner.FOREIGN
    except ConnectionRefusedError:
        return NatsOwner.NONE
    except (OSError, ValueError):  # silent, another protocol, not found, another certificate
        return NatsOwner.FOREIGN if _listens(address) else NatsOwner.NONE
    return NatsOwner.OURS


def answers(address: NatsAddress, keys: Credentials, authority: Path | None = None) -> bool:
    """Tell whether our own server is up: it accepts our credentials."""
    try:
        return _enters(address, keys.user(PROBE).read_text(), authority)
    except (OSError, ValueError):
        return False


def _listens(address: NatsAddress) -> bool:
    try:
        with socket.create_connection((address.host, address.port), _PATIENCE):
            return True
    except OSError:
        return False


def _enters(address: NatsAddress, credentials: str | None, authority: Path | None) -> bool:
    """Tell whether the server accepts a connection with these credentials, or with none."""
    with _call(address, authority) as (channel, info):
        if not info.get("auth_required") or not info.get("nonce"):
            return credentials is None  # it accepts anyone, or asks for a password
        words = _introduction(credentials, info["nonce"])
        try:
            channel.sendall(b"CONNECT " + json.dumps(words).encode() + b"\r\nPING\r\n")
            return _line(channel).startswith(b"PONG")
        except ConnectionError:  # it refused us so fast that its reply was lost
            return False


def _introduction(credentials: str | None, nonce: str) -> dict[str, Any]:
    words: dict[str, Any] = {"verbose": False, "pedantic": False, "lang": "python", "version": "1"}
    if credentials is not None:
        token, seed = split(credentials)
        signature = base64.urlsafe_b64encode(sign(seed, nonce.encode()))
        words |= {"jwt": token, "sig": signature.decode().rstrip("=")}
    return words


@contextlib.contextmanager
def _call(
    address: NatsAddress, authority: Path | None
) -> Iterator[tuple[socket.socket, dict[str, Any]]]:
    """Yield a connection to a server and its INFO."""
    with socket.create_connection((address.host, address.port), _PATIENCE) as plain:
        head, _, text = _line(plain).partition(b" ")
        info = json.loads(text) if head == b"INFO" else None
        if not isinstance(info, dict):
            raise ValueError("not a NATS server")
        if address.tls or info.get("tls_required"):
            import ssl

            context = ssl.create_default_context(cafile=authority)
            with context.wrap_socket(plain, server_hostname=address.host) as secure:
                yield secure, info
        else:
            yield plain, info


def _line(channel: socket.socket) -> bytes:
    """Return one line; in this short exchange a server sends each line alone."""
    text = b""
    while not text.endswith(b"\n"):
        more = channel.recv(4096)
        if not more or len(text) > _LONGEST_LINE:
            raise ConnectionResetError("it closed the connection")
        text += more
    return text.split(b"\r\n", 1)[0]
