"""What every bus does alike: mailboxes for handlers, answers to requests, word of being cut off."""

import abc
import asyncio
import itertools
import logging
import secrets
from collections import deque

from torchloom.bus.api import BusLost, Handler, Listener, NobodyAnswers

_MOST_WAITING = 64 << 20  # bytes that wait for one slow handler; what comes then is let go

_log = logging.getLogger(__name__)


class Mailbox:
    """Hands messages to a handler, one after the other, in a task of its own.

    The task outlives connections: a handler that is at work is not cut short when one is lost.
    """

    def __init__(self, carrier: "Carrier", subject: str, handler: Handler) -> None:
        self.subject = subject
        self.failures = 0
        self.overruns = 0
        self._carrier = carrier
        self._handler = handler
        self._waiting: deque[tuple[str, bytes, str]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"hear {subject}")

    def put(self, subject: str, data: bytes, reply: str) -> None:
        """Take a message in; one that finds the mailbox full is counted and let go."""
        if self._bytes > _MOST_WAITING:
            self.overruns += 1
            return
        self._waiting.append((subject, data, reply))
        self._bytes += len(data)
        self._filled.set()

    async def end(self) -> None:
        """Hear no more. A handler may end its own subscription."""
        self._carrier.remove(self)
        self.stop()

    def stop(self) -> None:
        """Call the handler no more."""
        self._waiting.clear()
        if self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        while self._carrier.holds(self):
            while self._waiting:
                message = self._waiting.popleft()
                self._bytes -= len(message[1])
                await self._hand_over(message)
            self._filled.clear()
            await self._filled.wait()

    async def _hand_over(self, message: tuple[str, bytes, str]) -> None:
        try:
            await self._handler(*message)
        except Exception:  # whatever a handler has, the next message is still to be heard
            self.failures += 1
            _log.exception("a handler of %s failed", self.subject)


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
        if self._closed:
            raise BusLost(f"cannot hear {subject}: the bus is closed")
        mailbox = Mailbox(self, subject, handler)
        self._mailboxes.append(mailbox)
        await self._listen(mailbox)
        return mailbox

    async def close(self) -> None:
        self._closed = True
        for mailbox in list(self._mailboxes):
            self.remove(mailbox)
            mailbox.stop()
        self._fail_requests("the bus is closed")
        await self._leave()

    def holds(self, mailbox: Mailbox) -> bool:
        """Tell whether a mailbox is still one of ours."""
        return mailbox in self._mailboxes

    def remove(self, mailbox: Mailbox) -> None:
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
