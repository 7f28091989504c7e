"""Where messages wait for whoever subscribed: one at a time for a task, or all together at once."""

import abc
import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from torchloom.bus.api import Handler, Said, Taker

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


class Queue(Mailbox):
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
