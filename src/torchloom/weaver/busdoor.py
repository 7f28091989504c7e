"""The door on the bus: the same questions as a request, `torchLoom.v1.door.NAME`, facts as JSON."""

import asyncio
import contextlib
import json
from typing import Any

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, Subscription, TooLong
from torchloom.weaver.answering import VERSION, Answering
from torchloom.weaver.store import StateLost


class BusDoor:
    """Answers whoever has the credentials for it; each question is a task of its own."""

    def __init__(self, answering: Answering, bus: Bus) -> None:
        self._answering = answering
        self._bus = bus
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to hear questions."""
        for name in self._answering.names:
            self._subscriptions.append(await self._bus.subscribe(subjects.door(name), self._hear))

    async def close(self) -> None:
        """Hear no more, and leave what is not answered yet."""
        for heard in self._subscriptions:
            await heard.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hear(self, subject: str, data: bytes, reply: str) -> None:
        if reply:
            task = asyncio.create_task(self._answer(subject.rpartition(".")[2], data, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, name: str, data: bytes, reply: str) -> None:
        with contextlib.suppress(BusLost, StateLost):
            said = await self._answering.answer(_question(name, data))
            try:
                await self._bus.publish(reply, json.dumps(said).encode())
            except TooLong:
                words = "the answer is too long for the bus; ask for less, with `limit`"
                shorter = {"error": words, "code": "too_long", "exit_code": 1}
                await self._bus.publish(reply, json.dumps(shorter).encode())


def _question(name: str, data: bytes) -> Any:
    """Return the question that a subject and its data are; no data are no facts."""
    try:
        facts = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return None
    return {"version": VERSION, **facts, "ask": name} if isinstance(facts, dict) else None
