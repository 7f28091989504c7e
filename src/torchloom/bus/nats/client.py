"""The bus over a NATS server (core NATS), with a connection that is made again when it is lost.

Nothing is buffered while it is disconnected. Handlers that run when a connection is lost continue.
"""

import asyncio
import base64
import json
import logging
import os
import random
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import nkeys

from torchloom.bus.api import BusLost, RawMessage, TooLong
from torchloom.bus.delivery import BaseBus, Mailbox
from torchloom.bus.nats.connection import NatsConnection
from torchloom.bus.nats.credentials import DEFAULT_PORT
from torchloom.errors import Failure

_SHORTEST, _LONGEST = 0.05, 2.0  # seconds between two tries to connect
_CONNECT = 10.0  # seconds a server has to let us in: thousands may come at once
_CLOSE = 1.0  # seconds it has to take what was sent last
_MOST_UNSENT = 8 << 20  # bytes the server may leave untaken before we call it lost
_MANY_UNSENT = 1 << 20  # bytes at which a publisher yields to other tasks
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f]+")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """How to connect to a server, and with which credentials: a JWT and the seed it is for."""

    url: str
    name: str
    credentials: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    channel: socket.socket | None = None  # a connected socket

    async def call(
        self, on_complaint: Callable[[str], None], on_unanswerable: Callable[[str], None]
    ) -> "NatsConnection":
        """Return a connection that the server has admitted; raises OSError or ValueError."""
        place = urlsplit(self.url if "://" in self.url else f"nats://{self.url}")
        if place.scheme not in ("nats", "tls") or not place.hostname:
            raise ValueError(f"{self.url!r} is not the address of a NATS server")
        link = NatsConnection(on_complaint, on_unanswerable)
        try:
            loop = asyncio.get_running_loop()
            if self.channel is not None:
                await loop.create_connection(lambda: link, sock=self.channel)
            else:
                port = place.port or DEFAULT_PORT
                await loop.create_connection(lambda: link, place.hostname, port)
            info = await link.greeting()
            if self.tls is not None or place.scheme == "tls" or info.get("tls_required"):
                if not info.get("tls_required") and not info.get("tls_available"):
                    raise ConnectionError("the server does not offer TLS")
                await link.secure(self.tls or ssl.create_default_context(), place.hostname)
            link.send(b"CONNECT %b\r\n" % json.dumps(self._introduction(info)).encode())
            if not await link.is_answered():
                raise ConnectionError(link.complaint or "the server closed the connection")
        except BaseException:
            link.abort()
            raise
        return link

    def _introduction(self, server: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {"name": self.name, "lang": "torchloom", "version": "1"}
        options |= {"verbose": False, "pedantic": False, "protocol": 1}
        options |= {"echo": True, "headers": True, "no_responders": True}
        place = urlsplit(self.url)
        if self.credentials is not None:
            jwt, seed = self.credentials
            options |= {"jwt": jwt, "sig": _signed(seed, str(server.get("nonce", "")))}
        elif place.password is not None:
            options |= {"user": place.username, "pass": place.password}
        elif place.username:
            options["auth_token"] = place.username
        return options


def _signed(seed: str, nonce: str) -> str:
    pair = nkeys.from_seed(bytearray(seed.encode()))
    signed = base64.b64encode(pair.sign(nonce.encode())).decode()
    pair.wipe()
    return signed


class NatsBus(BaseBus):
    """A bus over one connection to a NATS server, which is made again when it is lost.

    `start` returns at once: subscriptions may be made before the server is reachable.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: tuple[str, str] | None = None,  # a user's JWT and the seed of its key
        inbox: str = "",
        name: str = "torchloom",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(inbox)
        self.last_error = ""
        self._url = url
        self._caller = Caller(url, name, credentials, tls)
        self._link: NatsConnection | None = None
        self._subscriptions: dict[Mailbox, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        credentials: tuple[str, str] | None = None,
        inbox: str = "",
        name: str = "torchloom",
        tls: ssl.SSLContext | None = None,
        patience: float = 5.0,
    ) -> "NatsBus":
        """Return a connected bus; raises BusLost when no server admits us in time."""
        bus = cls(url, credentials=credentials, inbox=inbox, name=name, tls=tls)
        arrived = asyncio.Event()
        bus.on_back(arrived.set)
        bus.start()
        try:
            async with asyncio.timeout(patience):
                await arrived.wait()
        except TimeoutError:
            await bus.close()
            why = bus.last_error or "no answer"
            raise BusLost(f"cannot connect to a NATS server at {url}: {why}") from None
        return bus

    def start(self) -> None:
        """Begin to connect, and to reconnect until the bus is closed."""
        self._task = self._task or asyncio.create_task(self._stay_connected(), name="nats")

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.is_open and not self._closed

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        for each in (subject, reply or subject):
            if not _SUBJECT.fullmatch(each):
                raise ValueError(f"{each!r} is not a subject to publish on")
        link = self._live()
        if len(data) > link.longest:
            raise TooLong(f"the server accepts no message of this length on {subject}")
        if link.unsent > _MANY_UNSENT:
            await asyncio.sleep(0)
        if link.unsent > _MOST_UNSENT:
            raise BusLost(f"cannot publish on {subject}: the server accepts no messages")
        link.publish(subject, data, reply)

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        link = self._live()
        try:
            async with asyncio.timeout(timeout):
                is_answered = await link.is_answered()
        except TimeoutError:
            raise BusLost("the server does not answer") from None
        if not is_answered:
            raise BusLost(f"the connection to the server was lost: {link.complaint}")

    async def _stay_connected(self) -> None:
        wait = _SHORTEST
        while True:
            link = await self._connect()
            if link is not None:
                wait = _SHORTEST
                await self._serve(link)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(_LONGEST, wait * 2)

    async def _connect(self) -> NatsConnection | None:
        try:
            async with asyncio.timeout(_CONNECT):
                return await self._caller.call(self._complained, self._unanswerable)
        except (OSError, ValueError, nkeys.NkeysError) as error:
            self._complained(str(error) or type(error).__name__)
            return None

    async def _serve(self, link: NatsConnection) -> None:
        """Carry messages until the connection is lost."""
        try:
            link.subscribe(f"{self._inbox}.*", self._handle_replies)
            self._link = link
            for mailbox in list(self._mailboxes):
                await self._subscribed(mailbox)
            self._notify_back()
            await link.lost
            self._complained(link.complaint)
        finally:
            self._link = None
            self._subscriptions.clear()
            self._close_soon(link)
        if not self._closed:
            _log.warning("lost the NATS server at %s: %s", self._url, self.last_error)
            self._notify_lost()

    async def _subscribed(self, mailbox: Mailbox) -> None:
        if self._link is not None and mailbox not in self._subscriptions:
            sid = self._link.subscribe(mailbox.subject, mailbox.put, is_bulk=mailbox.is_bulk)
            self._subscriptions[mailbox] = sid

    def _unsubscribed(self, mailbox: Mailbox) -> None:
        sid = self._subscriptions.pop(mailbox, None)
        if sid is not None and self._link is not None:
            self._link.unsubscribe(sid)

    async def _leave(self) -> None:
        link, self._link = self._link, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if link is not None:
            self._close_soon(link)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _live(self) -> NatsConnection:
        if self._link is None or not self._link.is_open or self._closed:
            raise BusLost(f"no connection to the NATS server at {self._url}: {self.last_error}")
        return self._link

    def _close_soon(self, link: NatsConnection) -> None:
        self._in_background(link.close(_CLOSE))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _handle_replies(self, messages: list[RawMessage]) -> None:
        for subject, data, _ in messages:
            self._replied(subject, data)

    def _unanswerable(self, reply: str) -> None:
        self._replied(reply, None)

    def _complained(self, error: str) -> None:
        self.last_error = error
        _log.debug("nats: %s", error)


Find = Callable[[], Awaitable[Caller]]


class NoWay(Failure):
    """The way to the server could not be found out."""

    code = "no_way"


class FoundBus(NatsBus):
    """A bus that finds out before each connection how to make it; `find` may raise NoWay."""

    def __init__(self, find: Find, inbox: str) -> None:
        super().__init__("nats://not-found-yet", inbox=inbox)
        self._find = find

    async def _connect(self) -> NatsConnection | None:
        try:
            self._caller = await self._find()
        except NoWay as error:
            self._complained(str(error))
            return None
        return await super()._connect()


def new_key() -> tuple[str, str]:
    """Return a new key of a user: its seed, which stays here, and its public half."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    public: bytes = nkeys.from_seed(bytearray(seed)).public_key
    return seed.decode(), public.decode()
