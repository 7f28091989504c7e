"""The agent between a rank's socket and a weaver, all in this process, the bus in memory."""

import asyncio
import contextlib
import os
import random
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import Frames, Garbled, decode, encode, frame
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.bus.progress_page import ProgressPage
from torchloom.launch.node_agent.service import NodeAgent
from torchloom.launch.node_agent.uplink import AgentIdentity
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Applied,
    Device,
    Event,
    Greeting,
    Head,
    Kept,
    Kill,
    Message,
    Metrics,
    Prepare,
    Ready,
    Register,
    Stored,
    ToAgent,
    ToRank,
    Welcome,
)

from ...harness.async_wait import come_true, live
from ...harness.message_samples import FROM_RANK, REGISTER, TO_AGENT
from .weaving import CHANGES, NOBODY, Database, FakeWeaver

pytestmark = pytest.mark.process  # it takes seconds

JOB = f"local-{os.getpid()}"  # what a process may say that nobody launched
DEVICES = (Device("here/cpu/0", "cpu", 0),)
LIFE = Head(VERSION, JOB, 3, 0, "life-a")


def event(step: int, head: Head = LIFE) -> Event:
    return Event(head, "note", step, 1.5)


class Caller:
    """A rank's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard: list[Message] = []
        self.over = False
        self._writer = writer
        self._task = asyncio.create_task(self._listen(reader))

    def say(self, *messages: Message) -> None:
        self.send(b"".join(map(frame, messages)))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def kept(self, count: int) -> None:
        await come_true(lambda: any(m.upto >= count for m in self.told(Kept)))

    def told(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.heard if isinstance(message, kind)]

    def hang_up(self) -> None:
        self._writer.close()
        self._task.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.heard += [decode(whole, ToRank) for whole in frames.feed(data)]
        self.over = True


class Stage:
    """An agent, and those it stands between."""

    def __init__(self, folder: Path, limit: int = 1 << 20, beat: float = 1.0) -> None:
        self.exchange = Exchange()
        self.database = Database()
        self.address = folder / "run" / "agent.sock"
        me = AgentIdentity("here", "host", "boot", os.getpid(), DEVICES)
        bus = MemoryBus(self.exchange, subjects.inbox("here"))
        self.relay = NodeAgent(
            me, bus, self.address, folder / "spool", limit, 0.2, heartbeat_period=beat
        )
        self.dropped = self.relay.dropped
        self.weaver_bus = MemoryBus(self.exchange)
        self.weaver = FakeWeaver(self.weaver_bus, self.database)
        self._callers: list[Caller] = []

    async def call(self, register: Register | None = None) -> Caller:
        reader, writer = await asyncio.open_unix_connection(str(self.address))
        caller = Caller(reader, writer)
        self._callers.append(caller)
        if register is not None:
            caller.say(register)
        return caller

    async def greeted(self) -> None:
        await come_true(lambda: self.relay._uplink.greeted)

    def stored(self, head: Head = LIFE) -> list[Message]:
        records = self.database.records.get((head.job, head.rank, head.incarnation), {})
        return [records[number] for number in sorted(records)]

    def close(self) -> None:
        for caller in self._callers:
            caller.hang_up()


@contextlib.asynccontextmanager
async def stage(
    folder: Path, limit: int = 1 << 20, with_weaver: bool = True, beat: float = 1.0
) -> AsyncIterator[Stage]:
    one = Stage(folder, limit, beat)
    if with_weaver:
        await one.weaver.start()
    running = asyncio.create_task(one.relay.run())
    await come_true(one.address.exists)
    try:
        yield one
    finally:
        one.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def said_by(head: Head = LIFE) -> Register:
    return msgspec.structs.replace(REGISTER, head=head, page="")


def test_ranks_of_two_roles_with_one_number_are_both_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            heads = [Head(VERSION, JOB, 3, 0, f"life-{role}", role) for role in ("actor", "critic")]
            actor, critic = [await one.call(said_by(head)) for head in heads]
            await come_true(lambda: critic.told(Welcome))

            await one.weaver.tell("here", Prepare(heads[0], "c1/1", "pause"))
            await come_true(lambda: actor.told(Prepare))

            assert not critic.told(Prepare)
            assert one.dropped == {}

    live(story)


def test_a_rank_that_registers_is_known_to_the_weaver_and_welcomed(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            caller = await one.call(said_by())
            await come_true(lambda: caller.told(Welcome))

            assert one.weaver.acts == [said_by()]
            assert caller.heard == [Kept(LIFE, 0), Welcome(LIFE, 1, CHANGES)]

    live(story)


def test_acts_go_up_at_once_though_no_batch_is_answered_and_are_records_too(
    tmp_path: Path,
) -> None:
    ready, applied = Ready(LIFE, "c1", 7, 2), Applied(LIFE, "c1", 9, 0.1, 0.03)

    async def story() -> None:
        async with stage(tmp_path) as one:
            one.weaver.answers_batches = lambda batch: False
            caller = await one.call(said_by())
            caller.say(Metrics(LIFE, ("x",), ((1, 1.0, 2.0),)), ready, event(8), applied)
            await come_true(lambda: len(one.weaver.acts) == 3)
            unstored = one.stored()
            one.weaver.answers_batches = lambda batch: True
            await come_true(lambda: len(one.stored()) == 4)

            assert unstored == []
            assert one.weaver.acts == [said_by(), ready, applied]
            assert one.stored()[1:] == [ready, event(8), applied]

    live(story)


def test_acts_of_an_old_generation_are_refused_and_their_records_kept(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(LIFE, generation=4)
    late, now = Ready(LIFE, "old", 7, 2), Ready(newer, "new", 8, 2)

    async def story() -> None:
        async with stage(tmp_path) as one:
            caller = await one.call(said_by())
            caller.say(said_by(newer), late, now)
            await come_true(lambda: len(one.stored()) == 2 and len(one.weaver.acts) == 3)

            assert one.weaver.acts == [said_by(), said_by(newer), now]
            assert one.stored() == [late, now]
            assert one.dropped == {"old_generation": 1}

    live(story)


def test_the_acts_of_a_life_that_was_replaced_are_refused(tmp_path: Path) -> None:
    second = msgspec.structs.replace(LIFE, incarnation="life-b")
    young = msgspec.structs.replace(said_by(second), started=REGISTER.started + 1)

    async def story() -> None:
        async with stage(tmp_path) as one:
            old, new = await one.call(said_by()), await one.call()
            await come_true(lambda: old.told(Kept))
            new.say(young)
            await come_true(lambda: new.told(Kept))
            old.say(Ready(LIFE, "c", 1, 1))
            new.say(Ready(second, "c", 1, 1))
            await come_true(lambda: one.stored() and one.stored(second))
            await come_true(lambda: len(one.weaver.acts) == 3)

            assert one.weaver.acts == [said_by(), young, Ready(second, "c", 1, 1)]
            assert one.dropped == {"old_generation": 1}

    live(story)


def test_what_is_for_a_rank_reaches_that_life_of_it_alone(tmp_path: Path) -> None:
    other = msgspec.structs.replace(LIFE, rank=1, incarnation="life-b")
    gone = msgspec.structs.replace(LIFE, incarnation="life-0")

    async def story() -> None:
        async with stage(tmp_path) as one:
            first, second = await one.call(said_by()), await one.call(said_by(other))
            await come_true(lambda: first.told(Welcome) and second.told(Welcome))
            for head in (other, gone, LIFE):
                await one.weaver.tell("here", Prepare(head, "c", "pause", epoch=1))
            await come_true(lambda: first.told(Prepare) and second.told(Prepare))

            assert first.told(Prepare) == [Prepare(LIFE, "c", "pause", epoch=1)]
            assert second.told(Prepare) == [Prepare(other, "c", "pause", epoch=1)]
            assert one.dropped == {"no_such_rank": 1}

    live(story)


def test_whoever_started_a_rank_is_told_to_end_it(tmp_path: Path) -> None:
    launch = msgspec.structs.replace(LIFE, rank=NO_RANK, incarnation="launch")
    kill = Kill(LIFE, 1, 0, "hang_rank_0")

    async def story() -> None:
        async with stage(tmp_path) as one:
            told: list[Message] = []
            reader, writer = await asyncio.open_unix_connection(str(one.address))
            writer.write(frame(said_by(launch)))
            await one.call(said_by())
            await come_true(lambda: len(one.weaver.acts) == 2)
            await one.weaver.tell("here", kill)
            frames = Frames()
            while kill not in told:
                for whole in frames.feed(await reader.read(1 << 16)):
                    told.append(decode(whole, Kept | Welcome | Kill))
            writer.close()

            assert one.weaver.acts == [said_by(launch), said_by()]
            assert one.dropped == {}

    live(story)


def test_an_old_weaver_can_do_nothing_and_a_newer_one_is_greeted(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            one.weaver.answers_batches = lambda batch: False
            caller = await one.call(said_by())
            caller.say(event(1))
            await caller.kept(1)
            one.weaver.epoch = 7
            await one.weaver.tell("here", Greeting(NOBODY, "here", 7))
            await come_true(lambda: [hello.epoch for hello in one.weaver.hellos][-1] == 7)
            await one.greeted()
            for old in (
                Stored(LIFE, 6, 1),
                Kill(LIFE, 6, 0, "hang"),  # no signal: this process is the rank
                Welcome(LIFE, 6),
                Prepare(LIFE, "c", "stop", epoch=6),
            ):
                await one.weaver.tell("here", old)
            await come_true(lambda: one.dropped["old_epoch"] == 4)
            one.weaver.answers_batches = lambda batch: True
            await come_true(lambda: one.stored() == [event(1)])

            assert caller.told(Prepare) == []
            assert one.weaver.hellos[-1].ranks == (said_by(),)

    live(story)


def test_while_nobody_is_up_ranks_notice_nothing_and_all_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, with_weaver=False) as one:
            caller = await one.call(said_by())
            caller.say(*map(event, range(100)))
            await caller.kept(100)
            one.exchange.stop()
            caller.say(*map(event, range(100, 200)))
            await caller.kept(200)
            await one.weaver.start()
            one.exchange.start()
            await come_true(lambda: len(one.stored()) == 200)

            assert one.stored() == [event(step) for step in range(200)]
            assert one.database.twice == 0

    live(story)


def test_hello_after_the_bus_was_cut_off_tells_of_devices_and_ranks(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            await one.greeted()
            caller = await one.call(said_by())
            await come_true(lambda: caller.told(Welcome))
            one.exchange.stop()
            one.exchange.start()
            await come_true(lambda: len(one.weaver.hellos) == 2)

            first, second = one.weaver.hellos
            assert (first.devices, first.ranks, first.epoch) == (DEVICES, (), 0)
            assert (second.devices, second.ranks, second.epoch) == (DEVICES, (said_by(),), 1)
            assert (second.agent, second.host, second.boot) == ("here", "host", "boot")

    live(story)


def test_a_batch_that_got_lost_is_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            lost: list[int] = []

            def lose_two(batch: object) -> bool:
                lost.append(1)
                return len(lost) > 2

            one.weaver.answers_batches = lose_two
            caller = await one.call(said_by())
            caller.say(event(1))
            await come_true(lambda: lost)
            caller.say(event(2))
            await come_true(lambda: len(one.stored()) == 2)

            assert one.stored() == [event(1), event(2)]
            assert one.database.twice == 0

    live(story)


def test_a_beat_tells_how_far_the_ranks_are(tmp_path: Path) -> None:
    page = ProgressPage.open(tmp_path / "page")
    page.boundary(step=41, applied=41, lasted_ns=3_000_000, now_ns=0)

    async def story() -> None:
        async with stage(tmp_path) as one:
            await one.call(msgspec.structs.replace(said_by(), page=str(tmp_path / "page")))
            await come_true(lambda: any(beat.progress for beat in one.weaver.beats))

            (progress,) = one.weaver.beats[-1].progress
            assert (progress.head, progress.step, progress.step_seconds) == (LIFE, 41, 0.003)
            assert progress.moved > 0

    live(story)


def test_how_far_a_rank_came_is_told_when_it_hangs_up_not_with_the_next_beat(
    tmp_path: Path,
) -> None:
    page = ProgressPage.open(tmp_path / "page")

    async def story() -> None:
        async with stage(tmp_path, beat=3600.0) as one:
            caller = await one.call(msgspec.structs.replace(said_by(), page=str(tmp_path / "page")))
            await come_true(lambda: caller.told(Welcome))
            page.boundary(step=41, applied=41, lasted_ns=3_000_000, now_ns=0)
            caller.hang_up()
            await come_true(lambda: any(beat.progress for beat in one.weaver.beats))

            assert [progress.step for progress in one.weaver.beats[-1].progress] == [41]

    live(story)


def test_who_speaks_for_a_foreign_job_is_refused_and_counted(tmp_path: Path) -> None:
    foreign = Head(VERSION, "somebody-elses-job", 0, 0, "x")

    async def story() -> None:
        async with stage(tmp_path) as one:
            liar = await one.call(said_by(foreign))
            await come_true(lambda: liar.over)
            caller = await one.call(said_by())
            other_rank = msgspec.structs.replace(LIFE, rank=5)
            caller.say(event(1, foreign), said_by(foreign), event(2, other_rank), event(3))
            await come_true(one.stored)

            assert liar.heard == []
            assert one.stored() == [event(3)]
            assert set(one.database.records) == {(JOB, 0, "life-a")}
            assert one.weaver.acts == [said_by()]
            assert one.dropped == {"foreign_job": 3, "foreign_rank": 1}

    live(story)


def test_who_has_not_registered_is_not_heard(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            caller = await one.call()
            caller.say(event(1), said_by(), event(2))
            await come_true(one.stored)

            assert one.stored() == [event(2)]
            assert one.dropped == {"unregistered": 1}

    live(story)


def mutated(rng: random.Random) -> bytes:
    """Return a message that something happened to, framed."""
    data = bytearray(encode(rng.choice((*FROM_RANK, *TO_AGENT))))
    match rng.randrange(5):
        case 0:
            data = data[: rng.randrange(len(data))]
        case 1:
            data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            data = bytearray(rng.randbytes(rng.randrange(200)))
        case 3:
            version = msgspec.structs.replace(LIFE, version=rng.randrange(2, 99))
            data = bytearray(encode(event(1, version)))
        case 4:
            data = bytearray((1 << 20) + 7)
    return len(data).to_bytes(4, "big") + data


def test_whatever_is_said_on_a_socket_others_are_served(tmp_path: Path) -> None:
    rng = random.Random(7)

    async def story() -> None:
        async with stage(tmp_path) as one:
            caller = await one.call(said_by())
            for step in range(60):
                stranger = await one.call(said_by() if step % 2 else None)
                stranger.send(b"".join(mutated(rng) for _ in range(10)) + rng.randbytes(9))
                caller.say(event(step))
            await come_true(lambda: len(one.stored()) >= 60)
            await come_true(lambda: one.dropped["oversized"] and one.dropped["version"])

            ours = [record for record in one.stored() if isinstance(record, Event)]
            assert [e.step for e in ours if e.kind == "note"] == list(range(60))
            assert one.dropped["malformed"] > 50

    live(story)


def is_word_of_a_weaver(data: bytes) -> bool:
    """Tell whether what came out is well formed: then it is obeyed, as it should be."""
    try:
        decode(data, ToAgent)
    except Garbled:
        return False
    return True


def test_whatever_is_said_to_the_agent_on_the_bus_it_goes_on(tmp_path: Path) -> None:
    rng = random.Random(8)

    async def story() -> None:
        async with stage(tmp_path) as one:
            caller = await one.call(said_by())
            await come_true(lambda: caller.told(Welcome))
            for data in (mutated(rng)[4:] for _ in range(300)):
                if len(data) <= 1 << 20 and not is_word_of_a_weaver(data):
                    await one.weaver_bus.publish(subjects.down("here"), data)
            caller.say(event(1))
            await come_true(one.stored)

            assert one.stored() == [event(1)]
            assert one.dropped["malformed"] > 50
            assert one.relay._bus.failures == 0

    live(story)


def test_with_no_room_on_the_disk_a_rank_keeps_its_events_itself(tmp_path: Path) -> None:
    big = Event(LIFE, "big", 1, 1.0, {"text": "x" * 3000})

    async def story() -> None:
        async with stage(tmp_path, limit=8000) as one:
            one.weaver.answers_batches = lambda batch: False
            caller = await one.call(said_by())
            caller.say(*[big] * 10)
            await come_true(lambda: caller.over)
            kept = max(m.upto for m in (await told_again(one)).told(Kept))
            one.weaver.answers_batches = lambda batch: True
            await come_true(lambda: len(one.stored()) == kept)
            again = await one.call(said_by())
            again.say(*[big] * (10 - kept))
            await come_true(lambda: len(one.stored()) == 10)

            assert 0 < kept < 10
            assert one.dropped["spool_full"] == 1

    live(story)


async def told_again(one: Stage) -> Caller:
    caller = await one.call(said_by())
    await come_true(lambda: caller.told(Kept))
    return caller


def test_the_socket_is_for_this_user_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            assert stat.S_IMODE(one.address.stat().st_mode) == 0o600
            assert stat.S_IMODE(one.address.parent.stat().st_mode) == 0o700

    live(story)


AS_NOBODY = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
channel = socket.socket(socket.AF_UNIX)
try:
    channel.connect(sys.argv[1])
    channel.sendall(bytes.fromhex(sys.argv[2]))
    print(channel.recv(100))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_gets_nowhere_even_where_doors_stand_open() -> None:
    async def visit(address: Path) -> str:
        words = [sys.executable, "-c", AS_NOBODY, str(address), frame(said_by()).hex()]
        done = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    async def story(folder: Path) -> None:
        async with stage(folder) as one:
            closed = await visit(one.address)
            one.address.parent.chmod(0o755)
            one.address.chmod(0o666)
            opened = await visit(one.address)

            assert closed == "PermissionError"
            assert opened in ("b''", "ConnectionResetError", "BrokenPipeError")
            assert one.dropped == {"foreign_user": 1}
            assert one.weaver.acts == []

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        live(lambda: story(Path(folder)))
