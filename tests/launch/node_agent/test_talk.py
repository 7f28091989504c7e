"""What is said about membership, on its way through the agent of a node."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from torchloom.bus.codec import Frames, decode
from torchloom.messages.membership import (
    Arrived,
    Broke,
    EndProcess,
    Finished,
    Fork,
    Go,
    JoinGeneration,
    LetStand,
    MakeStore,
    NotRestored,
    ProcessReport,
    ProcessReports,
    Release,
    Restart,
    Restored,
    ToLaunch,
    ToMember,
    Training,
    Transfer,
    Watch,
)
from torchloom.messages.plane import (
    NO_RANK,
    Greeting,
    Head,
    Kept,
    Message,
    Ready,
    Register,
    Welcome,
)

from ...harness.async_wait import come_true, live
from .test_node_agent import JOB, LIFE, NOBODY, Caller, Stage, event, said_by, stage

pytestmark = pytest.mark.process  # it takes seconds

LAUNCH = msgspec.structs.replace(LIFE, rank=NO_RANK, incarnation="launch")
TALK: tuple[Message, ...] = (
    Training(LIFE, 1),
    Broke(LIFE, 2, True, "reset by peer"),
    Arrived(LIFE, 2, (0, 1)),
    Restored(LIFE, 0.5, 100),
    NotRestored(LIFE, "no room"),
    Finished(LIFE, 9),
)
LIVES = ProcessReports(LAUNCH, 0, (ProcessReport(0, 1, "here"), ProcessReport(1, 1, "here", -9, 7)))


class Launch(Caller):
    """A launch process' end of the socket."""

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        while data := await reader.read(1 << 16):
            self.heard += [decode(whole, ToLaunch | Kept) for whole in frames.feed(data)]


async def launch(one: Stage, register: Register) -> Launch:
    reader, writer = await asyncio.open_unix_connection(str(one.address))
    caller = Launch(reader, writer)
    one._callers.append(caller)
    caller.say(register)
    return caller


def orders(head: Head, epoch: int) -> tuple[Message, ...]:
    return (
        Watch(head, epoch, 0, True),
        Fork(head, epoch, 0, 1, 2, "here"),
        MakeStore(head, epoch, 0, "here"),
        EndProcess(head, epoch, 0, 1, 2, "hang"),
        Restart(head, epoch, 0, "exit_signal_9_rank_1", "live_wait"),
    )


def words(head: Head, epoch: int) -> tuple[Message, ...]:
    return (
        JoinGeneration(head, epoch),
        Transfer(head, epoch, "file:///x", 7),
        Go(head, epoch, 7),
        LetStand(head, epoch),
        Release(head, epoch),
    )


def test_talk_goes_up_at_once_and_is_neither_kept_nor_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            one.weaver.answers_batches = lambda batch: False
            rank, starter = await one.call(said_by()), await launch(one, said_by(LAUNCH))
            await one.greeted()
            rank.say(*TALK)
            starter.say(LIVES)
            await come_true(lambda: len(one.weaver.acts) == len(TALK) + 3)
            rank.say(event(1))
            await rank.kept(1)
            one.weaver.answers_batches = lambda batch: True
            await come_true(lambda: one.stored())

            assert [act for act in one.weaver.acts if act.head == LIFE] == [said_by(), *TALK]
            assert [act for act in one.weaver.acts if act.head == LAUNCH] == [
                said_by(LAUNCH),
                LIVES,
            ]
            assert one.stored() == [event(1)]
            assert max(kept.upto for kept in rank.told(Kept) if isinstance(kept, Kept)) == 1
            assert one.dropped == {}

    live(story)


def test_talk_of_an_older_generation_goes_up_though_acts_of_it_do_not(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(LIFE, rank=1, generation=4, incarnation="life-b")

    async def story() -> None:
        async with stage(tmp_path) as one:
            rank = await one.call(said_by())
            await one.call(said_by(newer))
            await come_true(lambda: len(one.weaver.acts) == 2)
            rank.say(Ready(LIFE, "c", 7, 2), Broke(LIFE, 7, True))
            await come_true(lambda: len(one.weaver.acts) == 3)

            assert one.weaver.acts[-1] == Broke(LIFE, 7, True)
            assert one.dropped == {"old_generation": 1}

    live(story)


def test_nobody_speaks_for_a_launch_but_it_and_it_for_no_rank(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            rank, starter = await one.call(said_by()), await launch(one, said_by(LAUNCH))
            await come_true(lambda: len(one.weaver.acts) == 2)
            rank.say(ProcessReports(LIFE, 0, ()), LIVES)
            starter.say(Arrived(LAUNCH, 7), Arrived(LIFE, 7), LIVES)
            await come_true(lambda: len(one.weaver.acts) == 3)

            assert one.weaver.acts[-1] == LIVES
            assert one.dropped == {"foreign_rank": 4}

    live(story)


def test_lives_that_nobody_would_hear_do_not_wait_for_a_weaver_and_talk_does(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with stage(tmp_path, with_weaver=False) as one:
            rank, starter = await one.call(said_by()), await launch(one, said_by(LAUNCH))
            rank.say(Training(LIFE, 1))
            starter.say(LIVES, LIVES)
            await come_true(lambda: one.dropped["unheard"] == 2)
            await one.weaver.start()
            await one.greeted()
            starter.say(LIVES)
            await come_true(lambda: LIVES in one.weaver.acts)

            assert one.weaver.acts.count(LIVES) == 1
            assert Training(LIFE, 1) in one.weaver.acts

    live(story)


def test_orders_reach_the_launch_of_their_job_and_words_the_life_of_their_rank(
    tmp_path: Path,
) -> None:
    later = msgspec.structs.replace(LIFE, generation=9)
    anyone = msgspec.structs.replace(later, incarnation="")
    another = msgspec.structs.replace(later, incarnation="life-0")
    to_launch = Head(1, JOB, 9, NO_RANK, "")
    elsewhere = Head(1, "another-job", 9, NO_RANK, "")

    async def story() -> None:
        async with stage(tmp_path) as one:
            rank, starter = await one.call(said_by()), await launch(one, said_by(LAUNCH))
            await come_true(lambda: len(one.weaver.acts) == 2)
            said = (*words(later, 1), *words(anyone, 1), *words(another, 1))
            for message in (*said, *orders(to_launch, 1), *orders(elsewhere, 1)):
                await one.weaver.tell("here", message)
            await come_true(lambda: one.dropped.total() == 10)
            await come_true(lambda: len(starter.heard) == 6 and len(rank.heard) == 12)

            heard = [message for message in rank.heard if isinstance(message, ToMember)]
            assert heard == [*words(later, 1), *words(anyone, 1)]
            assert starter.heard == [Kept(LAUNCH, 0), *orders(to_launch, 1)]
            assert one.dropped == {"no_such_rank": 5, "no_such_launch": 5}

    live(story)


@pytest.mark.parametrize("epoch", [0, 6])
def test_orders_and_words_of_an_old_weaver_go_nowhere(tmp_path: Path, epoch: int) -> None:
    async def story() -> None:
        async with stage(tmp_path) as one:
            rank, starter = await one.call(said_by()), await launch(one, said_by(LAUNCH))
            await come_true(lambda: len(one.weaver.acts) == 2)
            one.weaver.epoch = 7
            await one.weaver.tell("here", Greeting(NOBODY, "here", 7))
            await come_true(lambda: one.weaver.hellos[-1].epoch == 7)
            for message in (*words(LIFE, epoch), *orders(LAUNCH, epoch)):
                await one.weaver.tell("here", message)
            await come_true(lambda: one.dropped["old_epoch"] == 10)

            assert {type(message) for message in (*rank.heard, *starter.heard)} == {Kept, Welcome}

    live(story)
