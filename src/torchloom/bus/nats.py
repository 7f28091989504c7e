"""The bus over a NATS server, core NATS: a line to it, made anew for as long as it takes.

Nothing that is said while it is cut off is kept, and handlers that are at work when a line is lost
go on.
"""

import asyncio
import logging
import random
import re
import ssl
from collections.abc import Coroutine

import nkeys

from torchloom.bus.api import BusLost, Said, TooLong
from torchloom.bus.caller import Caller
from torchloom.bus.carrier import Carrier
from torchloom.bus.line import Line
from torchloom.bus.mailbox import Mailbox

_SHORTEST, _LONGEST = 0.05, 2.0  # seconds between two tries to connect
_CONNECT = 10.0  # seconds a server has to let us in: thousands may come at once
_CLOSE = 1.0  # seconds it has to take our last words
_MOST_UNSENT = 8 << 20  # bytes the server may leave untaken before we call it lost
_MANY_UNSENT = 1 << 20  # bytes at which whoever speaks lets others have a turn
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f]+")

_log = logging.getLogger(__name__)


class NatsBus(Carrier):
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
        self._line: Line | None = None
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

    async def _connect(self) -> Line | None:
        try:
            async with asyncio.timeout(_CONNECT):
                return await self._caller.call()
        except (OSError, ValueError, nkeys.NkeysError) as error:
            self._complained(str(error) or type(error).__name__)
            return None

    async def _serve(self, line: Line) -> None:
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

    def _live(self) -> Line:
        if self._line is None or not self._line.is_open or self._closed:
            raise BusLost(f"no connection to the NATS server at {self._url}: {self.last_error}")
        return self._line

    def _hang_up(self, line: Line) -> None:
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
