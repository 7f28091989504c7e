"""Ranks that stand still: stacks are asked for, a verdict is written, and only then is acted."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.memory import Exchange
from torchloom.client.plane import question
from torchloom.messages.plane import (
    Frame,
    Heartbeat,
    Kill,
    ProcessSample,
    Progress,
    Stacks,
    TakeStacks,
    Thread,
)
from torchloom.rules.hang import HangLimits
from torchloom.weaver.api.router import Router
from torchloom.weaver.health.hangs import limits_of
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import (
    FakeAgent,
    FakeRank,
    crowd,
    job_event,
    register,
    rows,
    until,
    weaver_at,
)

SLEEP = Frame("train", "/job/train.py", 32, "time.sleep(1000)")
BARRIER = Frame("barrier", "/v/site-packages/torch/distributed/distributed_c10d.py", 5356)
WAYS = {0: BARRIER, 1: SLEEP, 2: BARRIER}


class Stage:
    """Three ranks in step 20, of which rank 1 is where the others are not."""

    def __init__(self, agent: FakeAgent, ranks: list[FakeRank]) -> None:
        self.agent = agent
        self.ranks = ranks
        self.answered = 0
        self.silent: set[int] = set()
        self.age = 0.0

    async def stand(self, seconds: float) -> None:
        """Let the agent beat after so many seconds without progress."""
        self.age += seconds
        progress = tuple(Progress(rank.head, 20, 1, self.age, 0.1) for rank in self.ranks)
        said = Heartbeat(self.agent.head, self.agent.name, time.time(), progress)
        await self.agent.bus.publish(subjects.heartbeat(self.agent.name), encode(said))

    async def show(self, ways: dict[int, Frame] | None = None, cpu: float = 0.0) -> None:
        """Answer the next question for stacks; rank 1 computes so much between the looks."""
        await until(lambda: len(self.agent.of(TakeStacks)) > self.answered)
        asked = self.agent.of(TakeStacks)[self.answered]
        self.answered += 1
        for rank in self.ranks:
            number = rank.head.rank
            used = cpu if number == 1 else 0.0
            frame = (ways or WAYS)[number]
            looks = tuple(_look(at, frame, used * at) for at in (1.0, 2.0))
            silent = number in self.silent
            said = Stacks(rank.head, self.agent.name, asked.request, looks, silent)
            await self.agent.bus.publish(subjects.stacks(self.agent.name), encode(said))


def _look(at: float, frame: Frame, cpu: float) -> ProcessSample:
    return ProcessSample(at, cpu, "S", "", "py-spy", (Thread("MainThread", True, (frame,)),))


async def standing(exchange: Exchange, boundary: Any = "api", **wishes: Any) -> Stage:
    agent, ranks = await crowd(exchange, 3, boundary=boundary)
    for rank in ranks:
        rank.register = msgspec.structs.replace(rank.register, hang=wishes)
    await agent.hello()
    return Stage(agent, ranks)


def noted(folder: Path, *kinds: str) -> list[tuple[Any, ...]]:
    found = rows(folder, "SELECT kind, rank, reason FROM events ORDER BY seq")
    return [row for row in found if row[0] in kinds]


def test_the_culprit_is_ended_after_two_looks_that_agree_and_its_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            stage = await standing(exchange, limit=5.0)

            await stage.stand(1.5)
            await stage.show()
            await until(lambda: noted(tmp_path, "verdict"))
            await stage.stand(3.0)
            assert stage.agent.of(Kill) == []
            await stage.stand(1.0)
            await stage.show()
            await until(lambda: stage.agent.of(Kill))

            assert {(k.head.rank, k.reason) for k in stage.agent.of(Kill)} == {(1, "hang_rank_1")}

    asyncio.run(scenario())

    ((facts,),) = rows(tmp_path, "SELECT facts FROM events WHERE kind = 'verdict'")
    assert json.loads(facts)["stacks"] == [
        {"ranks": [1], "frames": ["train (job/train.py:32)"]},
        {"ranks": [0, 2], "frames": ["barrier (distributed/distributed_c10d.py:5356)"]},
    ]
    assert [row[1] for row in noted(tmp_path, "rank_suspect")] == [0, 1, 2]


def test_a_culprit_whose_threadlet_is_silent_has_another_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            stage = await standing(exchange, limit=5.0)
            stage.silent = {1}

            await stage.stand(5.5)
            await stage.show()
            await until(lambda: noted(tmp_path, "verdict"))
            await stage.stand(1.5)
            await stage.show()
            await until(lambda: stage.agent.of(Kill))

    asyncio.run(scenario())

    assert noted(tmp_path, "kill") == [("kill", 1, "heartbeat_timeout_worker_1")]


@pytest.mark.parametrize(
    ("boundary", "wishes"),
    [("attached", {"limit": 5.0}), ("api", {"limit": 5, "action": "notify"})],
)
def test_who_did_not_ask_for_it_is_only_told_of(
    boundary: Any, wishes: dict[str, Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            stage = await standing(exchange, boundary, **wishes)
            await stage.stand(5.5)
            await stage.show()
            await until(lambda: noted(tmp_path, "verdict"))
            await stage.stand(1.5)
            await stage.show()
            await until(lambda: noted(tmp_path, "hang"))

            assert stage.agent.of(Kill) == []

    asyncio.run(scenario())

    assert noted(tmp_path, "hang") == [("hang", 1, "hang_rank_1")]


def test_one_that_computes_is_never_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            stage = await standing(exchange, limit=1.0)
            for _ in range(4):
                while len(stage.agent.of(TakeStacks)) == stage.answered:
                    await stage.stand(5.0)  # again, if the last answer is still on its way
                    await asyncio.sleep(0.01)
                await stage.show(cpu=0.9)

            assert stage.agent.of(Kill) == []

    asyncio.run(scenario())

    assert noted(tmp_path, "kill", "hang") == []
    (verdict,) = noted(tmp_path, "verdict")
    assert verdict[1:] == (
        -1,
        "rank 1 computes in train (job/train.py:32)"
        " while ranks 0, 2 wait for their peers in barrier (distributed/distributed_c10d.py:5356)",
    )


def test_a_job_that_wants_no_looks_is_not_looked_at(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            stage = await standing(exchange, action="off")
            await stage.stand(900.0)
            await stage.agent.beat()
            await until(lambda: weaver.heartbeats.progress(weaver.roster.ranks("job-1")[0]) is None)

            assert stage.agent.of(TakeStacks) == []

    asyncio.run(scenario())

    assert noted(tmp_path, "rank_suspect") == []


def test_slow_steps_are_no_reason_to_look(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            slow = Progress(rank.head, 5, 1, 5.0, 2.0)
            await agent.beat(slow)
            await until(lambda: weaver.heartbeats.progress(weaver.roster.ranks("job-1")[0]) == slow)

            assert weaver.hangs.suspects == {}

    asyncio.run(scenario())


async def ask(weaver: Weaver, **facts: Any) -> dict[str, Any]:
    answer = await Router(weaver).answer(question("stacks", facts))
    return dict(answer["ok"])


def test_stacks_are_shown_on_demand_and_kept_of_a_job_that_has_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            stage = await standing(exchange)
            await stage.stand(1.5)
            await stage.show()
            await until(lambda: noted(tmp_path, "verdict"))
            asked = asyncio.create_task(ask(weaver, job="job-1"))
            await stage.show()
            now = await asked
            await stage.agent.act(job_event("job_ended", state="FAILED", reason="x"))
            await until(lambda: weaver.jobs.active() == [])
            kept = await ask(weaver, job="job-1")

            (role,) = now["roles"]
            assert (now["taken"], role["verdict"]["culprits"]) == ("now", [1])
            assert [one["kind"] for one in role["ranks"]] == [
                "waiting in a collective",
                "waiting",
                "waiting in a collective",
            ]
            assert (kept["taken"], kept["roles"][0]["stacks"]) == ("kept", role["stacks"])

    asyncio.run(scenario())


def test_an_agent_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            stage = await standing(exchange)

            seen = await weaver.stack_requests.take(weaver.roster.ranks("job-1"), patience=0.05)
            foreign = Stacks(stage.ranks[0].head, "other", "s", ())
            await stage.agent.bus.publish(subjects.stacks("other"), encode(foreign))
            await until(lambda: weaver.dropped["foreign_agent"])

            assert seen == {}
            assert await weaver.stack_requests.take([]) == {}

    asyncio.run(scenario())


def test_wishes_that_make_no_sense_are_none() -> None:
    api, attached = [_row("api")], [_row("attached")]
    odd: list[dict[str, Any]] = [{"limit": True}, {"limit": -1}, {"limit": "x"}, {"action": 7}]

    assert {limits_of(wishes, api) for wishes in odd} == {HangLimits(kills=True)}
    assert limits_of({}, attached) == HangLimits(kills=False)
    assert limits_of({"action": "kill", "limit": 3}, attached) == HangLimits(fixed=3.0, kills=True)


def _row(boundary: Any) -> Any:
    from torchloom.weaver.health.roster import _row as row

    return row("node-1", register(boundary=boundary), 0.0)
