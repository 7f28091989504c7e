"""How an agent and the launch process find and trust each other, on one host and over hosts.

On one host the kernel says who calls. Over hosts both sides show that they know the job's token,
which travelled in the environment of the agent and is never sent itself.
"""

import os
import socket
from pathlib import Path

from torchloom.launch import sockets
from torchloom.specs.dataclass import dataclass

_KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}  # seconds, and how often
_SILENCE = 5000  # milliseconds that sent bytes may stay without an answer from the other kernel
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where the launch process listens: a path on its own host, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Address":
        if text.startswith("/"):
            return cls(path=text)
        host, _, port = text.rpartition(":")
        return cls(host=host.strip("[]"), port=int(port))

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout: float = 10.0) -> socket.socket:
        """Call the launch process; OSError when it does not answer."""
        if self.path:
            return sockets.connect(Path(self.path))
        channel = socket.create_connection((self.host, self.port), timeout)
        watch(channel)
        return channel


def listen_on(host: str, port: int = 0) -> socket.socket:
    """Take calls from other hosts at one address of this one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def watch(channel: socket.socket) -> None:
    """Have the kernel notice that the other host is gone, whatever its processes do."""
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE)


def own_address_towards(host: str) -> str:
    """Return the address of this host that another one sees; nothing is sent to find out."""
    family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        address: str = probe.getsockname()[0]
    return address


def nonce() -> str:
    return os.urandom(16).hex()


def proof(token: str, who: str, challenge: str) -> str:
    """Return what only a holder of the token can answer to a challenge."""
    import hmac

    return hmac.new(
        token.encode(), f"{who}:{challenge}".encode(errors="replace"), "sha256"
    ).hexdigest()


def is_proof(given: object, token: str, who: str, challenge: str) -> bool:
    import hmac

    shown = str(given).encode(errors="replace")  # a caller may send half of a letter
    return hmac.compare_digest(shown, proof(token, who, challenge).encode())
