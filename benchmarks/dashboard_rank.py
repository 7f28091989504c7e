"""One rank that has told much and goes on telling: HOST PORT KEYS JOB NAMES STORED RATE COUNT.

It tells STORED steps as fast as they are stored and prints `stored`. From the first line on stdin
on it tells so many a second, each update sent alone, and each COUNT of them answers a line.
"""

import asyncio
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.plane_senders import Sender

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.nats import credentials
from torchloom.bus.nats.client import NatsBus
from torchloom.messages.plane import VERSION, Batch, Head, Heartbeat, Metrics, Progress, Register
from torchloom.plane.credentials import Credentials

VALUES = 10_000  # of a batch of what was before
BEAT = 1.0  # seconds


def names_of(count: int) -> tuple[str, ...]:
    """Return what the metrics are called; the first is what a page shows first."""
    return ("loss", *(f"train/m{number:02}" for number in range(1, count)))


class Teller:
    """Makes batches of numbers that fall and tremble."""

    def __init__(self, job: str, agent: str, names: int) -> None:
        self._head = Head(VERSION, job, 0, 0, f"{job}-0", "trainer")
        self._agent = agent
        self._names = names_of(names)
        self._draw = random.Random(7)
        self._number = 0
        self._step = 0

    @property
    def rank(self) -> Register:
        return Register(self._head, "trainer", 0, self._agent, 1, 1, "trainer/0", (), "api")

    def beat(self) -> bytes:
        """Return that the agent lives, and how far its rank is."""
        seen = Progress(self._head, self._step, 1, 0.003, 0.01)
        return encode(Heartbeat(self._head, self._agent, time.time(), (seen,)))

    def batches(self, steps: int, ends: float) -> Iterator[tuple[str, int, bytes]]:
        """Yield steps that end at a time, as their agent sends them."""
        size = max(1, VALUES // len(self._names))
        for first in range(0, steps, size):
            count = min(size, steps - first)
            times = [ends - (steps - first - at) * 0.01 for at in range(count)]
            data = self.batch(times)
            yield self._head.incarnation, self._number, data

    def batch(self, times: list[float]) -> bytes:
        """Return the next steps, one for each time."""
        rows = tuple(self._row(at) for at in times)
        self._number += 1
        record = encode(Metrics(self._head, self._names, rows))
        return encode(Batch(self._head, self._agent, self._number, (record,), 0, self._number - 1))

    def _row(self, at: float) -> tuple[float, ...]:
        self._step += 1
        low = 4 / (1 + math.log(self._step))
        return (self._step, at, *(low + self._draw.random() / 5 for _ in self._names))


class Rank:
    """The rank and its agent, on a bus."""

    def __init__(self, bus: NatsBus, job: str, agent: str, names: int) -> None:
        self._bus = bus
        self._agent = agent
        self._teller = Teller(job, agent, names)

    async def store(self, steps: int) -> None:
        """Tell what was before; come back when it is stored."""
        batches = list(self._teller.batches(steps, time.time()))
        sender = Sender(self._bus, self._agent, batches)
        await sender.send(await sender.introduce(self._teller.rank))

    async def live(self) -> None:
        while True:
            await self._bus.publish(subjects.heartbeat(self._agent), self._teller.beat())
            await asyncio.sleep(BEAT)

    async def tell(self, rate: float, count: int) -> None:
        """Tell so many updates at an even pace."""
        begin = time.monotonic()
        for number in range(1, count + 1):
            data = self._teller.batch([time.time()])
            await self._bus.publish(subjects.records(self._agent), data)
            await asyncio.sleep(begin + number / rate - time.monotonic())


async def main(
    host: str, port: str, keys: str, job: str, names: str, stored: str, rate: str, count: str
) -> None:
    """Tell what was before, then what is, until stdin ends."""
    agent = f"bench-{job}"
    own = credentials.split(Credentials(Path(keys)).sign_agent(agent))
    bus = await NatsBus.connect(
        f"nats://{host}:{port}", credentials=own, inbox=subjects.inbox(agent)
    )
    rank = Rank(bus, job, agent, int(names))
    await rank.store(int(stored))
    living = asyncio.create_task(rank.live())
    print("stored", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await rank.tell(float(rate), int(count))
        print("told", flush=True)
    living.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
