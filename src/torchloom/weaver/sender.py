"""Say things to agents and, through them, to ranks; what must be heard the rules say again."""

import asyncio
from collections import Counter

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, TooLong
from torchloom.bus.codec import encode
from torchloom.messages.plane import NO_RANK, VERSION, Head, Message
from torchloom.weaver.store.rows import RankProcessRow


class Sender:
    """The weaver's voice, in the order of `soon`. Being cut off is no error, only counted."""

    def __init__(self, bus: Bus, dropped: Counter[str]) -> None:
        self._bus = bus
        self._dropped = dropped
        self._waiting: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    def soon(self, agent: str, message: Message) -> None:
        """Say something to an agent without waiting."""
        self._waiting.put_nowait((subjects.down(agent), message))

    def answer(self, reply: str, message: Message) -> None:
        """Answer a request without waiting."""
        if reply:
            self._waiting.put_nowait((reply, message))

    async def run(self) -> None:
        """Say what is to be said until cancelled."""
        while True:
            await self._say(*await self._waiting.get())

    async def drain(self) -> None:
        """Say what is left, before leaving."""
        while not self._waiting.empty():
            await self._say(*self._waiting.get_nowait())

    async def _say(self, subject: str, message: Message) -> None:
        try:
            await self._bus.publish(subject, encode(message))
        except BusLost:
            self._dropped["unsent"] += 1
        except TooLong:
            self._dropped["unsent_too_long"] += 1


def head_of(rank: RankProcessRow) -> Head:
    """Return how a message to one life of a rank begins."""
    return Head(VERSION, rank.job, rank.generation, rank.rank, rank.incarnation, rank.role)


def own_head(job: str = "") -> Head:
    """Return how a message to an agent begins."""
    return Head(VERSION, job, 0, NO_RANK, "")
