"""Send messages to agents, and through them to ranks. What must arrive, the rules repeat."""

import asyncio
from collections import Counter

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, TooLong
from torchloom.bus.codec import encode
from torchloom.messages.plane import NO_RANK, VERSION, Head, Message
from torchloom.weaver.store.rows import RankProcessRow


class Sender:
    """Sends messages in the order of `soon`. Those that the bus loses are only counted."""

    def __init__(self, bus: Bus, dropped: Counter[str]) -> None:
        self._bus = bus
        self._dropped = dropped
        self._waiting: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    def soon(self, agent: str, message: Message) -> None:
        """Send a message to an agent without waiting."""
        self._waiting.put_nowait((subjects.down(agent), message))

    def answer(self, reply: str, message: Message) -> None:
        """Answer a request without waiting."""
        if reply:
            self._waiting.put_nowait((reply, message))

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._send(*await self._waiting.get())

    async def drain(self) -> None:
        """Send what is queued."""
        while not self._waiting.empty():
            await self._send(*self._waiting.get_nowait())

    async def _send(self, subject: str, message: Message) -> None:
        try:
            await self._bus.publish(subject, encode(message))
        except BusLost:
            self._dropped["unsent"] += 1
        except TooLong:
            self._dropped["unsent_too_long"] += 1


def head_of(rank: RankProcessRow) -> Head:
    """Return the head of a message to one process of a rank."""
    return Head(VERSION, rank.job, rank.generation, rank.rank, rank.incarnation, rank.role)


def own_head(job: str = "") -> Head:
    """Return the head of a message to an agent."""
    return Head(VERSION, job, 0, NO_RANK, "")
