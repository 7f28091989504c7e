"""The bus over a NATS server, core NATS: a line to it, made anew for as long as it takes.

Nothing that is said while it is cut off is kept, and handlers that are at work when a line is lost
go on.
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

from torchloom.bus.api import BusLost, Said, TooLong
from torchloom.bus.delivery import BaseBus, Mailbox
from torchloom.bus.nats.connection import NatsConnection
from torchloom.bus.nats.credentials import DEFAULT_PORT
from torchloom.errors import Failure

_SHORTEST, _LONGEST = 0.05, 2.0  # seconds between two tries to connect
_CONNECT = 10.0  # seconds a server has to let us in: thousands may come at once
_CLOSE = 1.0  # seconds it has to take our last words
_MOST_UNSENT = 8 << 20  # bytes the server may leave untaken before we call it lost
_MANY_UNSENT = 1 << 20  # bytes at which whoever speaks lets others have a turn
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f]+")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Where a line leads, and what is shown there: a JWT, and that we have the seed it is for."""

    url: str
    name: str
    credentials: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    channel: socket.socket | None = None  # a connection that somebody has made

    async def call(self) -> "NatsConnection":
        """Return a line on which the server has let us in; raises OSError or ValueError."""
        place = urlsplit(self.url if "://" in self.url else f"nats://{self.url}")
        if place.scheme not in ("nats", "tls") or not place.hostname:
            raise ValueError(f"{self.url!r} is no address of a NATS server")
        line = NatsConnection()
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


class NatsBus(BaseBus):
    """One connection to a NATS server, made again for as long as it takes.

    `start` comes back at once: subscriptions may be made before the server is there.
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
        self._line: NatsConnection | None = None
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
        """Return a bus that is connected; raises BusLost when no server lets us in in time."""
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
            raise BusLost(f"no NATS server lets us in at {url}: {why}") from None
        return bus

    def start(self) -> None:
        """Begin to connect, and go on for ever."""
        self._task = self._task or asyncio.create_task(self._stay_connected(), name="nats")

    @property
    def connected(self) -> bool:
        return self._line is not None and self._line.is_open and not self._closed

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        for each in (subject, reply or subject):
            if not _SUBJECT.fullmatch(each):
                raise ValueError(f"{each!r} is no subject to speak on")
        line = self._live()
        if len(data) > line.longest:
            raise TooLong(f"the server takes no message of this length on {subject}")
        if line.unsent > _MANY_UNSENT:
            await asyncio.sleep(0)
        if line.unsent > _MOST_UNSENT:
            raise BusLost(f"cannot say anything on {subject}: the server takes nothing")
        line.publish(subject, data, reply)

    async def flush(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        line = self._live()
        try:
            async with asyncio.timeout(timeout):
                is_answered = await line.is_answered()
        except TimeoutError:
            raise BusLost("the server does not answer") from None
        if not is_answered:
            raise BusLost(f"the server is lost: {line.complaint}")

    async def _stay_connected(self) -> None:
        wait = _SHORTEST
        while True:
            line = await self._connect()
            if line is not None:
                wait = _SHORTEST
                await self._serve(line)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(_LONGEST, wait * 2)

    async def _connect(self) -> NatsConnection | None:
        try:
            async with asyncio.timeout(_CONNECT):
                return await self._caller.call()
        except (OSError, ValueError, nkeys.NkeysError) as error:
            self._complained(str(error) or type(error).__name__)
            return None

    async def _serve(self, line: NatsConnection) -> None:
        """Carry messages until the connection is lost."""
        line.on_complaint = self._complained
        line.on_unheard = lambda reply: self._answered(reply, None)
        try:
            line.listen(f"{self._inbox}.*", self._take_answers)
            self._line = line
            for mailbox in list(self._mailboxes):
                await self._listen(mailbox)
            self._tell_back()
            await line.lost
            self._complained(line.complaint)
        finally:
            self._line = None
            self._subscriptions.clear()
            self._hang_up(line)
        if not self._closed:
            _log.warning("lost the NATS server at %s: %s", self._url, self.last_error)
            self._tell_lost()

    async def _listen(self, mailbox: Mailbox) -> None:
        if self._line is not None and mailbox not in self._subscriptions:
            sid = self._line.listen(mailbox.subject, mailbox.put, is_bulk=mailbox.is_bulk)
            self._subscriptions[mailbox] = sid

    def _unlisten(self, mailbox: Mailbox) -> None:
        sid = self._subscriptions.pop(mailbox, None)
        if sid is not None and self._line is not None:
            self._line.unlisten(sid)

    async def _leave(self) -> None:
        line, self._line = self._line, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if line is not None:
            self._hang_up(line)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _live(self) -> NatsConnection:
        if self._line is None or not self._line.is_open or self._closed:
            raise BusLost(f"no connection to the NATS server at {self._url}: {self.last_error}")
        return self._line

    def _hang_up(self, line: NatsConnection) -> None:
        self._in_background(line.close(_CLOSE))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _take_answers(self, said: list[Said]) -> None:
        for subject, data, _ in said:
            self._answered(subject, data)

    def _complained(self, words: str) -> None:
        self.last_error = words
        _log.debug("nats: %s", words)


Find = Callable[[], Awaitable[Caller]]


class NoWay(Failure):
    """Whoever knows where the server is does not say so."""

    code = "no_way"


class FoundBus(NatsBus):
    """A bus that asks before each connection how to make it; whoever is asked may raise NoWay."""

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
