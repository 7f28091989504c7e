"""What every bus does alike: mailboxes for handlers, answers to requests, word of being cut off."""

import abc
import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence

from torchloom.bus.api import BusLost, Handler, Listener, NobodyAnswers, Said, Taker

_MOST_WAITING = 64 << 20  # bytes that wait for one slow handler; what comes then is let go
_log = logging.getLogger(__name__)


class Mailbox(abc.ABC):
    """What a subscription has heard and nobody has taken in yet."""

    is_bulk = False

    def __init__(self, subject: str, let_go: Callable[["Mailbox"], None]) -> None:
        self.subject = subject
        self.failures = 0
        self.overruns = 0
        self._let_go = let_go
        self._is_open = True

    @abc.abstractmethod
    def put(self, said: Sequence[Said]) -> None:
        """Take messages in."""

    async def end(self) -> None:
        """Hear no more. A handler may end its own subscription."""
        self._let_go(self)
        self.stop()

    def stop(self) -> None:
        """Call the handler no more."""
        self._is_open = False

    def _failed(self) -> None:
        self.failures += 1
        _log.exception("a handler of %s failed", self.subject)


class HandlerQueue(Mailbox):
    """Hands messages to a handler, one after the other, in a task of its own.

    The task outlives connections: a handler that is at work is not cut short when one is lost.
    """

    def __init__(self, subject: str, handler: Handler, let_go: Callable[["Mailbox"], None]) -> None:
        super().__init__(subject, let_go)
        self._handler = handler
        self._waiting: deque[Said] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"hear {subject}")

    def put(self, said: Sequence[Said]) -> None:
        """Take messages in; those that find the mailbox full are counted and let go."""
        for message in said:
            if self._bytes > _MOST_WAITING:
                self.overruns += 1
                continue
            self._waiting.append(message)
            self._bytes += len(message[1])
        self._filled.set()

    def stop(self) -> None:
        super().stop()
        self._waiting.clear()
        if self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        while self._is_open:
            while self._waiting:
                message = self._waiting.popleft()
                self._bytes -= len(message[1])
                await self._hand_over(message)
            self._filled.clear()
            await self._filled.wait()

    async def _hand_over(self, message: Said) -> None:
        try:
            await self._handler(*message)
        except Exception:  # whatever a handler has, the next message is still to be heard
            self._failed()


class Tray(Mailbox):
    """Hands all that has come since the last time to a plain function, without a task."""

    is_bulk = True

    def __init__(self, subject: str, taker: Taker, let_go: Callable[["Mailbox"], None]) -> None:
        super().__init__(subject, let_go)
        self._taker = taker
        self._waiting: list[Said] = []
        self._loop = asyncio.get_running_loop()

    def put(self, said: Sequence[Said]) -> None:
        """Take messages in; they are taken out before the loop looks at anything else."""
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting += said

    def _hand_over(self) -> None:
        said, self._waiting = self._waiting, []
        if not self._is_open:
            return
        try:
            self._taker(said)
        except Exception:  # whatever it has, the next messages are still to be heard
            self._failed()


class BaseBus(abc.ABC):
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
        return await self._hear(HandlerQueue(subject, handler, self._remove))

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
