"""By which names this server is called, and whose pages may call it: DNS rebinding ends here."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from torchloom.errors import UserError, shorten

VARIABLE = "LOOM_ORIGINS"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PORTS = {"http": 80, "https": 443}


class BadOrigin(UserError):
    """What was named as an origin is none."""

    code = "bad_origin"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{VARIABLE} has {shorten(text)!r}, which is no origin; "
            "write scheme://host:port as a browser does, without a path: http://localhost:9000"
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """The values of `Host` and of `Origin` that are ours; every other is foreign."""

    hosts: frozenset[str]
    origins: frozenset[str]


def reach(port: int, host: str = "", extra: str = "", tls: bool = False) -> Reach:
    """Return how a server may be called: by loopback names, its own address, and named origins."""
    scheme = "https" if tls else "http"
    names = (*_LOOPBACK, *([_bracketed(host)] if host else []))
    ours = [(scheme, name, port) for name in names]
    named = [_origin(word) for word in extra.replace(",", " ").split()]
    return Reach(frozenset(_hosts([*ours, *named])), frozenset(_origins([*ours, *named])))


def _origin(text: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise BadOrigin(text) from None
    plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in _PORTS or not host or not plain or "*" in host:
        raise BadOrigin(text)
    return parts.scheme, _bracketed(host), port or _PORTS[parts.scheme]


def _hosts(places: Iterable[tuple[str, str, int]]) -> Iterable[str]:
    for scheme, name, port in places:
        yield f"{name}:{port}"
        if port == _PORTS[scheme]:
            yield name


def _origins(places: Iterable[tuple[str, str, int]]) -> Iterable[str]:
    for scheme, name, port in places:
        usual = port == _PORTS[scheme]
        yield f"{scheme}://{name}" if usual else f"{scheme}://{name}:{port}"


def _bracketed(host: str) -> str:
    plain = host.strip("[]").lower()
    return f"[{plain}]" if ":" in plain else plain
