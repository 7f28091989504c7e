"""The hub goes on whatever a look comes to, and looks at nothing while nobody listens."""

import asyncio
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchloom.server.cursors import ORIGIN
from torchloom.server.drafts import Draft, Standing
from torchloom.server.listeners import Listener, Wish
from torchloom.server.live import Hub
from torchloom.server.sources import Found

from ..weaver.fakes import until
from .sinks import Sink


class Reader:
    """A desk whose looks are answered from a list; an error is raised."""

    def __init__(self, *looks: Exception | list[int]) -> None:
        self.store, self.home = SimpleNamespace(), Path("/nowhere")
        self.count = 0
        self._looks = list(looks)

    async def read(self, look: Any, *args: Any) -> Any:
        self.count += 1
        if look.__name__ == "now":
            return Standing()
        if look.__name__ == "between":
            return Found([], args[2], True)
        found = self._looks.pop(0) if self._looks else []
        if isinstance(found, Exception):
            raise found
        drafts = [Draft("j", "event", 0, 0.0, {"seq": n}, {"told": n}) for n in found]
        upto = Standing(0, max(found, default=args[0].told), 0)
        return Found(drafts, upto, True), {"j": []}


async def listened(reader: Reader, count: int) -> list[int]:
    """Return what one client hears until it has so many messages, and has left."""
    hub, one, sink = Hub(reader), Listener("j", Wish(frozenset({"event"}))), Sink()  # type: ignore[arg-type]
    one.outlet = sink
    work = asyncio.create_task(hub.run())
    goal = await hub.attach(one, ORIGIN)
    await hub.tell(one, ORIGIN, goal)
    await until(lambda: len(sink.numbers()) >= count)
    hub.leave(one)
    await until(lambda: hub.is_idle)
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
