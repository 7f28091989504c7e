"""Simulated node agents for the scale bench: real connections, real credentials, no ranks behind.

python -m benchmarks.scale_agents HOST PORT KEYS FIRST COUNT

Each agent has a connection of its own, comes in with a user that the plane's key signed, says
hello with ten ranks, beats once a second with how far they are, and answers nothing else. It finds
back after a cut as a real one does. Orders come as lines of JSON on stdin, reports go to stdout;
times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

import asyncio
import base64
import json
import random
import resource
import struct
import sys
import time
from pathlib import Path
from typing import Any

import nkeys

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.nats import credentials
from torchloom.messages.plane import (
    VERSION,
    Batch,
    Event,
    Head,
    Heartbeat,
    Hello,
    Progress,
    Register,
)
from torchloom.plane.credentials import Credentials

RANKS = 10  # of an agent
JOB = 100  # agents of a job
STEP = 0.005  # seconds
TURNS = 50  # in which the beats of a second are sent
AT_ONCE = 20  # connections of a process that are on their way in
PATIENCE, MOST_PATIENCE = 2.5, 10.0  # seconds between two hellos of an agent nobody greets
SHORTEST, LONGEST = 0.05, 2.0  # seconds between two tries to connect
LET_IN = 10.0  # seconds that a server has for it
SOME_TIME, SOME_STEP = 1.1e9, 0xDEADBEE1  # stand in a beat for what changes from one to the next


class Line(asyncio.Protocol):
    """One connection of an agent, as long as it lasts."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.transport: asyncio.Transport | None = None
        self.is_lost = False
        self.entered: asyncio.Future[bool] = agent.fleet.loop.create_future()
        self._received = b""
        self._introduced = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if not self.entered.done():
            self.entered.set_result(False)
        elif self.agent.line is self:
            self.agent.cut_off()

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        start = 0
        while (end := data.find(b"\r\n", start)) >= 0:
            line = data[start:end]
            if line.startswith(b"MSG "):
                words = line.split()
                after = end + 2 + int(words[-1])
                if len(data) < after + 2:
                    break
                self.agent.hear(words[2], data[end + 2 : after])
                start = after + 2
                continue
            start = end + 2
            self._obey(line)
        self._received = data[start:]

    def _obey(self, line: bytes) -> None:
        if line.startswith(b"INFO ") and not self._introduced:
            self._introduced = True
            self.write(self.agent.introduction(json.loads(line[5:])["nonce"]))
        elif line == b"PING":
            self.write(b"PONG\r\n")
        elif line == b"PONG" and not self.entered.done():
            self.entered.set_result(True)
        elif line.startswith(b"-ERR"):
            self.agent.fleet.complaints.append(line.decode())

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Agent:
    """One agent; `line` is its connection once it has come in."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self.fleet = fleet
        self.id = f"sim-{number}"
        self.head = Head(VERSION, "", 0, -1, f"boot/{number}")
        job, place = divmod(number, JOB)
        ranks = range(place * RANKS, (place + 1) * RANKS)
        self.heads = [
            Head(VERSION, f"sim-{job}", 0, rank, f"{job:08x}{rank:024x}") for rank in ranks
        ]
        self.jwt, seed = credentials.split(fleet.keys.sign_agent(self.id))
        self.key = nkeys.from_seed(bytearray(seed.encode()))
        self.line: Line | None = None
        self.has_come = self.greeted = self.dead = False
        self.hello_at = self.beat_at = self.greeted_at = 0.0
        self.wait, self.patience = SHORTEST, PATIENCE
        self.beginning, self.parts = self.beat_frame()

    async def connect(self) -> None:
        """Come in; try again, later and later, until that works."""
        self.has_come = True
        while not self.dead:
            line = Line(self)
            try:
                async with self.fleet.gate, asyncio.timeout(LET_IN):
                    await self.fleet.loop.create_connection(lambda: line, *self.fleet.server)  # noqa: B023
                    if await line.entered and not line.is_lost:
                        self.line, self.wait = line, SHORTEST
                        self.hello()
                        return
            except (OSError, TimeoutError):
                line.abort()
            await asyncio.sleep(self.wait * random.uniform(0.5, 1.5))
            self.wait = min(LONGEST, 2 * self.wait)

    @property
    def where(self) -> str:
        """Tell why nobody has greeted it yet."""
        since = time.monotonic() - self.hello_at
        return f"said hello {since:.0f} s ago" if self.line is not None else "is not connected"

    def cut_off(self) -> None:
        """Find back, unless we are no more."""
        self.line, self.greeted = None, False
        if not self.dead:
            self.fleet.spawn(self.connect())

    def introduction(self, nonce: str) -> bytes:
        """Show the server that we have the key which the JWT is for; listen; ask for a sign."""
        signed = base64.b64encode(self.key.sign(nonce.encode())).decode()
        facts = {"jwt": self.jwt, "sig": signed, "name": self.id, "lang": "bench", "version": "1"}
        words = json.dumps({**facts, "verbose": False, "pedantic": False, "protocol": 1})
        listening = f"SUB {subjects.down(self.id)} 1\r\nSUB {subjects.inbox(self.id)}.> 2\r\n"
        return f"CONNECT {words}\r\n{listening}PING\r\n".encode()

    def hear(self, sid: bytes, data: bytes) -> None:
        """Take a greeting; a weaver that greets unasked wants to hear hello again."""
        self.fleet.heard += 1
        if sid == b"2":
            self.greeted, self.greeted_at = True, time.monotonic()
            self.patience = PATIENCE
        elif b"Greeting" in data[:16]:
            self.hello()

    def hello(self) -> None:
        self.greeted, self.hello_at = False, time.monotonic()
        said = Hello(
            self.head, self.id, self.id, "boot", 1, 0, (), tuple(map(self.register, self.heads))
        )
        self.publish(subjects.hello(self.id), encode(said), f"{subjects.inbox(self.id)}.1")

    def register(self, head: Head) -> Register:
        """Return how a rank introduces itself."""
        local = head.rank % RANKS
        device = f"{self.id}/cpu/{local}"
        return Register(
            head, "trainer", local, self.id, 2 + local, 1, f"trainer/{head.rank}", (device,),
            "attached", (), JOB * RANKS,
        )  # fmt: skip

    def beat(self, now: float) -> None:
        """Say that we live; the ranks are where five milliseconds a step have brought them."""
        step = struct.pack("!I", int(now / STEP) | 1 << 31)
        if self.line is not None:
            self.line.write(self.beginning + struct.pack("!d", time.time()) + step.join(self.parts))
        self.beat_at = now
        if not self.greeted and now - self.hello_at > self.patience:
            self.patience = min(MOST_PATIENCE, 2 * self.patience)
            self.hello()

    def beat_frame(self) -> tuple[bytes, list[bytes]]:
        """Return a beat as it travels, cut where the time belongs and wherever the step does.

        Simulating is not to take the processors from those who are measured.
        """
        seen = tuple(Progress(head, SOME_STEP, 1, 0.003, STEP) for head in self.heads)
        data = encode(Heartbeat(self.head, self.id, SOME_TIME, seen))
        beginning, rest = data.split(struct.pack("!d", SOME_TIME))
        head = f"PUB {subjects.heartbeat(self.id)} {len(data)}\r\n".encode()
        return head + beginning, (rest + b"\r\n").split(struct.pack("!I", SOME_STEP))

    def end_rank(self, local: int) -> float:
        """Tell of a rank's exit, as an agent does that was told so; return when."""
        head = self.heads[local]
        event = Event(head, "exit", 1, time.time(), {"reason": "exit_signal_9"})
        batch, now = encode(Batch(head, self.id, 1, (encode(event),))), time.monotonic()
        self.publish(subjects.records(self.id), batch)
        return now

    def die(self) -> tuple[float, float]:
        """Be gone, as a node that lost its power; return when, and when the last beat was."""
        self.dead = True
        if self.line is not None:
            self.line.abort()
        return time.monotonic(), self.beat_at

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        head = (
            f"PUB {subject} {reply} {len(data)}\r\n" if reply else f"PUB {subject} {len(data)}\r\n"
        )
        if self.line is not None:
            self.line.write(head.encode() + data + b"\r\n")


class Fleet:
    """The agents of one process."""

    def __init__(self, server: tuple[str, int], keys: Path, first: int, count: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = server
        self.keys = Credentials(keys)
        self.gate = asyncio.Semaphore(AT_ONCE)
        self.heard = 0
        self.complaints: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.agents = {number: Agent(self, number) for number in range(first, first + count)}

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def beat(self) -> None:
        """Beat for everybody, each in its own part of the second."""
        turns = [list(self.agents.values())[turn::TURNS] for turn in range(TURNS)]
        began, done = time.monotonic(), 0
        while True:
            await asyncio.sleep(0.5 / TURNS)
            due = int((time.monotonic() - began) * TURNS)
            for turn in range(max(done, due - TURNS), due):
                now = time.monotonic()
                for agent in turns[turn % TURNS]:
                    if agent.line is not None:
                        agent.beat(now)
            done = due

    def obey(self, order: dict[str, Any]) -> Any:
        """Carry out an order and return what became of it."""
        mine = [self.agents[number] for number in order.get("agents", ()) if number in self.agents]
        if order["do"] == "come":
            for agent in mine:
                self.spawn(agent.connect())
            return len(mine)
        if order["do"] == "die":
            return {agent.id: agent.die() for agent in mine}
        if order["do"] == "end":
            return {f"{a.heads[0].job}/{a.heads[0].rank}": a.end_rank(0) for a in mine}
        living = [agent for agent in self.agents.values() if agent.has_come and not agent.dead]
        greeted = [agent.greeted_at for agent in living if agent.greeted]
        missing = [f"{agent.id} {agent.where}" for agent in living if not agent.greeted]
        return {"greeted": len(greeted), "last": max(greeted, default=0.0), "heard": self.heard,
                "complaints": self.complaints[:3], "missing": missing[:3]}  # fmt: skip


async def main(host: str, port: str, keys: str, first: str, count: str) -> None:
    """Obey until stdin ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fleet = Fleet((host, int(port)), Path(keys), int(first), int(count))
    reader = asyncio.StreamReader(limit=1 << 24)
    await fleet.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    beating = fleet.loop.create_task(fleet.beat())
    print(json.dumps("ready"), flush=True)
    while (line := await reader.readline()) and not beating.done():
        print(json.dumps(fleet.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
