"""What every bus does alike: mailboxes for handlers, answers to requests, word of being cut off."""

import abc
import asyncio
import itertools
import secrets

from torchloom.bus.api import BusLost, Handler, Listener, NobodyAnswers, Taker
from torchloom.bus.mailbox import Mailbox, Queue, Tray


class Carrier(abc.ABC):
    """A bus but for the way its messages take."""

    def __init__(self, inbox: str = "") -> None:
        self._inbox = f"{inbox or '_INBOX'}.{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        self._mailboxes: list[Mailbox] = []
        self._gone = [0, 0]  # failures and overruns of mailboxes that have ended
        self._when_lost: list[Listener] = []
        self._when_back: list[Listener] = []
        self._closed = False

    @property
    @abc.abstractmethod
    def connected(self) -> bool: ...

    @property
    def failures(self) -> int:
        return self._gone[0] + sum(mailbox.failures for mailbox in self._mailboxes)

    @property
    def overruns(self) -> int:
        return self._gone[1] + sum(mailbox.overruns for mailbox in self._mailboxes)

    def on_lost(self, listener: Listener) -> None:
        self._when_lost.append(listener)

    def on_back(self, listener: Listener) -> None:
        self._when_back.append(listener)

    @abc.abstractmethod
    async def publish(self, subject: str, data: bytes, reply: str = "") -> None: ...

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        reply = f"{self._inbox}.{next(self._numbers)}"
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[reply] = answer
        try:
            await self.publish(subject, data, reply)
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise NobodyAnswers(f"no answer on {subject} within {timeout:g} s") from None
        finally:
            del self._answers[reply]

    async def subscribe(self, subject: str, handler: Handler) -> Mailbox:
        self._check_open(subject)
        return await self._hear(Queue(subject, handler, self._remove))

    async def collect(self, subject: str, taker: Taker) -> Mailbox:
        self._check_open(subject)
        return await self._hear(Tray(subject, taker, self._remove))

    async def close(self) -> None:
        self._closed = True
        for mailbox in list(self._mailboxes):
            self._remove(mailbox)
            mailbox.stop()
        self._fail_requests("the bus is closed")
        await self._leave()

    def _check_open(self, subject: str) -> None:
        if self._closed:
            raise BusLost(f"cannot hear {subject}: the bus is closed")

    async def _hear(self, mailbox: Mailbox) -> Mailbox:
        self._mailboxes.append(mailbox)
        await self._listen(mailbox)
        return mailbox

    def _remove(self, mailbox: Mailbox) -> None:
        """Forget a mailbox, but not what went wrong with it."""
        if mailbox in self._mailboxes:
            self._mailboxes.remove(mailbox)
            self._gone = [self._gone[0] + mailbox.failures, self._gone[1] + mailbox.overruns]
            self._unlisten(mailbox)

    def _answered(self, reply: str, data: bytes | None) -> None:
        """Hand an answer to who asked; None says that nobody listens."""
        waiting = self._answers.get(reply)
        if waiting is None or waiting.done():
            return  # it came too late
        if data is None:
            waiting.set_exception(NobodyAnswers("nobody listens there"))
        else:
            waiting.set_result(data)

    def _tell_lost(self) -> None:
        self._fail_requests("the bus was cut off before the answer came")
        self._tell(self._when_lost)

    def _tell_back(self) -> None:
        self._tell(self._when_back)

    def _fail_requests(self, why: str) -> None:
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(BusLost(why))

    def _tell(self, listeners: list[Listener]) -> None:
        for listener in list(listeners):
            listener()

    @abc.abstractmethod
    async def _listen(self, mailbox: Mailbox) -> None: ...

    @abc.abstractmethod
    def _unlisten(self, mailbox: Mailbox) -> None: ...

    @abc.abstractmethod
    async def _leave(self) -> None: ...
