"""One rank that logs five numbers at an even pace, each update sent alone: HOST PORT KEYS JOB RATE.

A real threadlet would send what came within half a second together, which is cheaper for everybody.
"""

import asyncio
import sys
import time
from pathlib import Path

from benchmarks.plane_told import NAMES

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.nats import credentials
from torchloom.bus.nats.client import NatsBus
from torchloom.messages.plane import NO_RANK, VERSION, Batch, Head, Hello, Metrics, Register
from torchloom.plane.credentials import Credentials

NAME = "ticker"


async def main(host: str, port: str, keys: str, job: str, rate: str) -> None:
    own = credentials.split(Credentials(Path(keys)).sign_agent(NAME))
    inbox = subjects.inbox(NAME)
    bus = await NatsBus.connect(f"nats://{host}:{port}", credentials=own, inbox=inbox)
    head = Head(VERSION, job, 0, 0, f"{job}-0", "trainer")
    rank = Register(head, "trainer", 0, NAME, 1, 1, "trainer/0", (), "api")
    hello = Hello(Head(VERSION, "", 0, NO_RANK, ""), NAME, NAME, "boot", 1, 0, (), (rank,))
    await bus.request(subjects.hello(NAME), encode(hello), 10.0)
    number, begin = 0, time.monotonic()
    while True:
        number += 1
        row = (number, time.time(), 1 / number, 0.5, 1e-3, 2.5, 4096.0)
        record = encode(Metrics(head, NAMES, (row,)))
        batch = Batch(head, NAME, number, (record,), 0, number - 1)
        await bus.publish(subjects.records(NAME), encode(batch))
        await asyncio.sleep(begin + number / float(rate) - time.monotonic())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
