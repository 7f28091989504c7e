"""What every bus has in common: mailboxes of handlers, replies to requests, loss and return."""

import abc
import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence

from torchloom.bus.api import BusLost, Handler, Listener, NoReply, RawMessage, Taker

_MOST_WAITING = 64 << 20  # bytes that wait for one slow handler; more is dropped
_log = logging.getLogger(__name__)


class Mailbox(abc.ABC):
    """What a subscription has received and its handler has not taken yet."""

    is_bulk = False

    def __init__(self, subject: str, remove: Callable[["Mailbox"], None]) -> None:
        self.subject = subject
        self.failures = 0
        self.overruns = 0
        self._remove = remove
        self._is_open = True

    @abc.abstractmethod
    def put(self, messages: Sequence[RawMessage]) -> None:
        """Add messages."""

    async def end(self) -> None:
        """End the subscription. A handler may end its own."""
        self._remove(self)
        self.stop()

    def stop(self) -> None:
        """Stop calling the handler."""
        self._is_open = False

    def _failed(self) -> None:
        self.failures += 1
        _log.exception("a handler of %s failed", self.subject)


class HandlerQueue(Mailbox):
    """Hands messages to a handler, one after the other, in a task of its own.

    The task outlives connections: a handler that is at work is not cut short when one is lost.
    """

    def __init__(self, subject: str, handler: Handler, remove: Callable[["Mailbox"], None]) -> None:
        super().__init__(subject, remove)
        self._handler = handler
        self._waiting: deque[RawMessage] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"handle {subject}")

    def put(self, messages: Sequence[RawMessage]) -> None:
        """Add messages; those that find the mailbox full are counted and dropped."""
        for message in messages:
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

    async def _hand_over(self, message: RawMessage) -> None:
        try:
            await self._handler(*message)
        except Exception:  # the next message is handled all the same
            self._failed()


class Tray(Mailbox):
    """Hands all messages since the last time to a plain function, without a task."""

    is_bulk = True

    def __init__(self, subject: str, taker: Taker, remove: Callable[["Mailbox"], None]) -> None:
        super().__init__(subject, remove)
        self._taker = taker
        self._waiting: list[RawMessage] = []
        self._loop = asyncio.get_running_loop()

    def put(self, messages: Sequence[RawMessage]) -> None:
        """Add messages; they are handed over before the loop polls for input again."""
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting += messages

    def _hand_over(self) -> None:
        messages, self._waiting = self._waiting, []
        if not self._is_open:
            return
        try:
            self._taker(messages)
        except Exception:  # the next messages are handled all the same
            self._failed()


class BaseBus(abc.ABC):
    """A bus without its transport."""

    def __init__(self, inbox: str = "") -> None:
        self._inbox = f"{inbox or '_INBOX'}.{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        self._replies: dict[str, asyncio.Future[bytes]] = {}
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
        self._replies[reply] = answer
        try:
            await self.publish(subject, data, reply)
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise NoReply(f"no answer on {subject} within {timeout:g} s") from None
        finally:
            del self._replies[reply]

    async def subscribe(self, subject: str, handler: Handler) -> Mailbox:
        self._check_open(subject)
        return await self._open(HandlerQueue(subject, handler, self._remove))

    async def collect(self, subject: str, taker: Taker) -> Mailbox:
        self._check_open(subject)
        return await self._open(Tray(subject, taker, self._remove))

    async def close(self) -> None:
        self._closed = True
        for mailbox in list(self._mailboxes):
            self._remove(mailbox)
            mailbox.stop()
        self._fail_requests("the bus is closed")
        await self._leave()

    def _check_open(self, subject: str) -> None:
        if self._closed:
            raise BusLost(f"cannot subscribe to {subject}: the bus is closed")

    async def _open(self, mailbox: Mailbox) -> Mailbox:
        self._mailboxes.append(mailbox)
        await self._subscribed(mailbox)
        return mailbox

    def _remove(self, mailbox: Mailbox) -> None:
        """Remove a mailbox, but keep its counts of failures."""
        if mailbox in self._mailboxes:
            self._mailboxes.remove(mailbox)
            self._gone = [self._gone[0] + mailbox.failures, self._gone[1] + mailbox.overruns]
            self._unsubscribed(mailbox)

    def _replied(self, reply: str, data: bytes | None) -> None:
        """Hand a reply to its request; None means that the subject has no subscriber."""
        waiting = self._replies.get(reply)
        if waiting is None or waiting.done():
            return  # it came too late
        if data is None:
            waiting.set_exception(NoReply("the subject has no subscriber"))
        else:
            waiting.set_result(data)

    def _notify_lost(self) -> None:
        self._fail_requests("the bus was disconnected before the reply came")
        self._notify(self._when_lost)

    def _notify_back(self) -> None:
        self._notify(self._when_back)

    def _fail_requests(self, why: str) -> None:
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_exception(BusLost(why))

    def _notify(self, listeners: list[Listener]) -> None:
        for listener in list(listeners):
            listener()

    @abc.abstractmethod
    async def _subscribed(self, mailbox: Mailbox) -> None: ...

    @abc.abstractmethod
    def _unsubscribed(self, mailbox: Mailbox) -> None: ...

    @abc.abstractmethod
    async def _leave(self) -> None: ...
