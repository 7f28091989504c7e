"""Agents that send batches as fast as they are stored: HOST PORT KEYS JOB POINTS.

Each has a connection and a user of its own and at most as many batches under way as the weaver lets
it. Prints how long it took from the first batch to the last `stored`, and how many points it were.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks.plane_told import Ranks

from torchloom.bus import subjects
from torchloom.bus.codec import decode, encode
from torchloom.bus.nats import credentials
from torchloom.bus.nats.client import NatsBus
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Batch,
    Greeting,
    Head,
    Hello,
    Register,
    Stored,
    ToAgent,
)
from torchloom.plane.credentials import Credentials

AGENTS, RANKS, STEPS = 4, 16, 10
PATIENCE = 120.0


class Sender:
    """One agent with the batches of its ranks."""

    def __init__(self, bus: NatsBus, name: str, batches: list[tuple[str, int, bytes]]) -> None:
        self._bus = bus
        self._name = name
        self._batches = batches
        self._stored: dict[str, int] = {}
        self._told = asyncio.Event()

    async def introduce(self, *ranks: Register) -> int:
        """Say hello; return how many batches may be under way."""
        await self._bus.subscribe(subjects.down(self._name), self._hear)
        head = Head(VERSION, "", 0, NO_RANK, "")
        said = Hello(head, self._name, self._name, "boot", 1, 0, (), ranks)
        answer = await self._bus.request(subjects.hello(self._name), encode(said), 10.0)
        return decode(answer, Greeting).window

    async def send(self, window: int) -> None:
        """Send all batches; come back when the last of them is stored."""
        for place, (_, _, data) in enumerate(self._batches):
            while place >= window and not self._is_stored(place - window):
                await self._next()
            await self._bus.publish(subjects.records(self._name), data)
        while not all(
            self._is_stored(place) for place in range(-min(RANKS, len(self._batches)), 0)
        ):
            await self._next()

    def _is_stored(self, place: int) -> bool:
        life, number, _ = self._batches[place]
        return self._stored.get(life, 0) >= number

    async def _next(self) -> None:
        self._told.clear()
        async with asyncio.timeout(PATIENCE):
            await self._told.wait()

    async def _hear(self, subject: str, data: bytes, reply: str) -> None:
        said = decode(data, ToAgent)
        if isinstance(said, Stored):
            self._stored[said.head.incarnation] = said.upto
            self._told.set()


async def main(host: str, port: str, keys: str, job: str, points: str) -> None:
    ranks = Ranks(AGENTS * RANKS, STEPS, job)
    rounds = [list(ranks.round()) for _ in range(-(-int(points) // ranks.points))]
    senders = []
    for number in range(AGENTS):
        name = f"{job}-{number}"
        own = credentials.split(Credentials(Path(keys)).sign_agent(name))
        bus = await NatsBus.connect(
            f"nats://{host}:{port}", credentials=own, inbox=subjects.inbox(name)
        )
        mine = [each for told in rounds for each in told[number * RANKS : (number + 1) * RANKS]]
        batches = []
        for each in mine:
            records = tuple(encode(record) for record in each.records if record is not None)
            batch = Batch(each.head, name, each.first, records, 0, each.first - 1)
            batches.append((each.head.incarnation, each.first, encode(batch)))
        senders.append(Sender(bus, name, batches))
    windows = [await sender.introduce() for sender in senders]
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for sender, window in zip(senders, windows, strict=True):
            tasks.create_task(sender.send(window))
    took = time.perf_counter() - began
    print(json.dumps({"seconds": took, "points": ranks.points * len(rounds)}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
