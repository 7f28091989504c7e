"""What a weaver does for an agent, as little of it as can be, written with the bus alone."""

from collections.abc import Callable

from torchloom.bus import subjects
from torchloom.bus.api import Bus
from torchloom.bus.codec import decode, encode
from torchloom.messages.membership import MembershipReport
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Batch,
    Event,
    FromRank,
    Greeting,
    Head,
    Heartbeat,
    Hello,
    Message,
    Metrics,
    Planned,
    Register,
    Stored,
    Welcome,
)

Life = tuple[str, int, str]
CHANGES = (Planned("c1/1", 7, {"name": "lr", "value": 0.1}, True),)
NOBODY = Head(VERSION, "", 0, NO_RANK, "")


class Database:
    """What stays when a weaver goes: records by number, and the epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.records: dict[Life, dict[int, Message]] = {}
        self.twice = 0
        self.dropped = 0

    def upto(self, life: Life) -> int:
        return max(self.records.get(life, {}), default=0)

    def steps(self) -> dict[tuple[str, int], list[tuple[str, int]]]:
        """Return incarnation and step of each record of each rank, by number."""
        found: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for (job, rank, life), records in self.records.items():
            steps = [(life, _step(records[number])) for number in sorted(records)]
            found.setdefault((job, rank), []).extend(steps)
        return found


class FakeWeaver:
    """Greets, stores, answers."""

    def __init__(self, bus: Bus, database: Database) -> None:
        database.epoch += 1
        self.epoch = database.epoch
        self.hellos: list[Hello] = []
        self.beats: list[Heartbeat] = []
        self.acts: list[Message] = []
        self.answers_batches: Callable[[Batch], bool] = lambda batch: True
        self._bus = bus
        self._database = database
        self._known: set[str] = set()

    async def start(self) -> None:
        await self._bus.subscribe(subjects.HELLOS, self._hello)
        await self._bus.subscribe(subjects.HEARTBEATS, self._beat)
        await self._bus.subscribe(subjects.RECORDS, self._batch)
        await self._bus.subscribe(subjects.ACTS, self._act)
        if self._bus.connected:
            await self._bus.flush()

    async def tell(self, agent: str, message: Message) -> None:
        await self._bus.publish(subjects.down(agent), encode(message))

    async def _hello(self, subject: str, data: bytes, reply: str) -> None:
        hello = decode(data, Hello)
        self.hellos.append(hello)
        self._known.add(hello.agent)
        await self._bus.publish(reply, encode(Greeting(NOBODY, hello.agent, self.epoch, 8)))

    async def _beat(self, subject: str, data: bytes, reply: str) -> None:
        beat = decode(data, Heartbeat)
        self.beats.append(beat)
        if beat.agent not in self._known:
            await self.tell(beat.agent, Greeting(NOBODY, beat.agent, self.epoch))

    async def _act(self, subject: str, data: bytes, reply: str) -> None:
        act = decode(data, FromRank | MembershipReport)
        self.acts.append(act)
        agent = subjects.agent_of(subject)
        if isinstance(act, Register) and act.head.rank != NO_RANK and agent is not None:
            await self.tell(agent, Welcome(act.head, self.epoch, CHANGES))

    async def _batch(self, subject: str, data: bytes, reply: str) -> None:
        batch = decode(data, Batch)
        life = (batch.head.job, batch.head.rank, batch.head.incarnation)
        if not self.answers_batches(batch):
            return
        stored = self._database.records.setdefault(life, {})
        upto = self._database.upto(life)
        if batch.follows <= upto:
            self._database.dropped += batch.dropped if batch.first > upto + 1 else 0
            for number, record in enumerate(batch.records, batch.first):
                if number > upto:
                    self._database.twice += number in stored
                    stored[number] = decode(record, FromRank)
        await self.tell(batch.agent, Stored(batch.head, self.epoch, self._database.upto(life)))


def _step(record: Message) -> int:
    if isinstance(record, Metrics):
        step = record.rows[0][0]
        assert isinstance(step, int)
        return step
    assert isinstance(record, Event)
    return record.step
