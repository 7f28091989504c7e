"""The hub goes on whatever a look comes to, and looks at nothing while nobody listens."""

import asyncio
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchloom.server.stream.cursors import ORIGIN
from torchloom.server.stream.hub import Hub, Listener, StreamFilter, written
from torchloom.server.stream.payloads import ReaderPosition, StreamPayload
from torchloom.server.stream.sources import FoundPayloads

from ...harness.fake_agents import until
from .sinks import Sink


class Reader:
    """An access whose looks are answered from a list; an error is raised."""

    def __init__(self, *looks: Exception | list[int]) -> None:
        self.store, self.home = SimpleNamespace(), Path("/nowhere")
        self.count = 0
        self._looks = list(looks)

    async def read(self, look: Any, *args: Any) -> Any:
        self.count += 1
        if look.__name__ == "now":
            return ReaderPosition()
        if look.__name__ == "between":
            return FoundPayloads([], args[2], True)
        found = self._looks.pop(0) if self._looks else []
        if isinstance(found, Exception):
            raise found
        drafts = [StreamPayload("j", "event", 0, 0.0, {"seq": n}, {"reported": n}) for n in found]
        upto = ReaderPosition(0, max(found, default=args[0].reported), 0)
        standing = args[1]["j"].standing.copy()
        messages = written(drafts, standing)
        standing.reach(upto)
        return FoundPayloads(drafts, upto, True), {"j": (messages, standing)}


async def listened(reader: Reader, count: int) -> list[int]:
    """Return what one client hears until it has so many messages, and has left."""
    hub, one, sink = Hub(reader), Listener("j", StreamFilter(frozenset({"event"}))), Sink()  # type: ignore[arg-type]
    one.sender = sink
    work = asyncio.create_task(hub.run())
    goal = await hub.attach(one, ORIGIN)
    await hub.catch_up(one, ORIGIN, goal)
    await until(lambda: len(sink.numbers()) >= count)
    hub.leave(one)
    await hub.poll()  # finds no client
    work.cancel()
    return sink.numbers()


def test_a_look_that_fails_is_tried_again_and_nothing_is_left_out() -> None:
    reader = Reader([1], sqlite3.OperationalError("locked"), ValueError("a bug"), [2, 3])

    assert asyncio.run(listened(reader, 3)) == [1, 2, 3]


def test_while_nobody_listens_nothing_is_read() -> None:
    async def look() -> int:
        reader = Reader()
        work = asyncio.create_task(Hub(reader).run())  # type: ignore[arg-type]
        for _ in range(100):
            await asyncio.sleep(0)
        work.cancel()
        return reader.count

    assert asyncio.run(look()) == 0


class Gated(Reader):
    """An access whose looks at what is new take until they are let."""

    def __init__(self, *looks: Exception | list[int]) -> None:
        super().__init__(*looks)
        self.gate, self.is_looking = asyncio.Event(), asyncio.Event()

    async def read(self, look: Any, *args: Any) -> Any:
        if look.__name__ == "_read":
            self.is_looking.set()
            await self.gate.wait()
        return await super().read(look, *args)


def test_a_client_joins_a_job_that_others_follow_while_a_look_takes_long() -> None:
    async def join() -> tuple[list[int], list[int]]:
        reader = Gated([1, 2], [3])
        hub, sinks = Hub(reader), (Sink(), Sink())  # type: ignore[arg-type]
        first, second = (Listener("j", StreamFilter(frozenset({"event"}))) for _ in sinks)
        first.sender, second.sender = sinks
        await hub.catch_up(first, ORIGIN, await hub.attach(first, ORIGIN))
        work = asyncio.create_task(hub.run())
        await reader.is_looking.wait()

        async with asyncio.timeout(10):
            goal = await hub.attach(second, ORIGIN)  # the look is under way

        reader.gate.set()
        await hub.catch_up(second, ORIGIN, goal)
        await until(lambda: all(len(sink.numbers()) >= 3 for sink in sinks))
        work.cancel()
        return sinks[0].numbers(), sinks[1].numbers()

    assert asyncio.run(join()) == ([1, 2, 3], [1, 2, 3])
