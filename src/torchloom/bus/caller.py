"""Come into a NATS server: find it, go on encrypted where it wants that, show who we are."""

import asyncio
import base64
import json
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import nkeys

from torchloom.bus.address import DEFAULT_PORT
from torchloom.bus.line import Line


@dataclass(frozen=True)
class Caller:
    """Where a line leads, and what is shown there: a JWT, and that we have the seed it is for."""

    url: str
    name: str
    credentials: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    channel: socket.socket | None = None  # a connection that somebody has made

    async def call(self) -> "Line":
        """Return a line on which the server has let us in; raises OSError or ValueError."""
        place = urlsplit(self.url if "://" in self.url else f"nats://{self.url}")
        if place.scheme not in ("nats", "tls") or not place.hostname:
            raise ValueError(f"{self.url!r} is no address of a NATS server")
        line = Line()
        try:
            loop = asyncio.get_running_loop()
            if self.channel is not None:
                await loop.create_connection(lambda: line, sock=self.channel)
            else:
                port = place.port or DEFAULT_PORT
                await loop.create_connection(lambda: line, place.hostname, port)
            said = await line.greeting()
            if self.tls is not None or place.scheme == "tls" or said.get("tls_required"):
                if not said.get("tls_required") and not said.get("tls_available"):
                    raise ConnectionError("the server offers no TLS")
                await line.secure(self.tls or ssl.create_default_context(), place.hostname)
            line.say(b"CONNECT %b\r\n" % json.dumps(self._introduction(said)).encode())
            if not await line.is_answered():
                raise ConnectionError(line.complaint or "the server hung up")
        except BaseException:
            line.abort()
            raise
        return line

    def _introduction(self, server: dict[str, Any]) -> dict[str, Any]:
        words: dict[str, Any] = {"name": self.name, "lang": "torchloom", "version": "1"}
        words |= {"verbose": False, "pedantic": False, "protocol": 1}
        words |= {"echo": True, "headers": True, "no_responders": True}
        place = urlsplit(self.url)
        if self.credentials is not None:
            jwt, seed = self.credentials
            words |= {"jwt": jwt, "sig": _signed(seed, str(server.get("nonce", "")))}
        elif place.password is not None:
            words |= {"user": place.username, "pass": place.password}
        elif place.username:
            words["auth_token"] = place.username
        return words


def _signed(seed: str, nonce: str) -> str:
    pair = nkeys.from_seed(bytearray(seed.encode()))
    signed = base64.b64encode(pair.sign(nonce.encode())).decode()
    pair.wipe()
    return signed
