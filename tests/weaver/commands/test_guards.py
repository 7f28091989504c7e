"""A guard takes its change back, says so, and outlives the weaver."""

import asyncio
import math
import re
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.errors import UserError
from torchloom.messages.plane import Metrics
from torchloom.specs.states import JobState
from torchloom.weaver.api.commands import CommandApi
from torchloom.weaver.api.refusals import JobOver, NothingToUndo
from torchloom.weaver.api.request import SetRequest, UndoRequest
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import FakeAgent, FakeRank, crowd, rows, until, weaver_at

COMMANDS = "SELECT id, author, reason, state, effective FROM commands ORDER BY number"
GUARDS = "SELECT command, state, why, base FROM guards"
NOTED = "SELECT kind, reason FROM events WHERE kind LIKE 'guard%' ORDER BY seq"


class Curve:
    """What a rank logs, record by record."""

    def __init__(self, agent: FakeAgent, rank: FakeRank) -> None:
        self.agent = agent
        self.head = rank.head
        self.count = 0

    async def log(self, *points: tuple[int, float], name: str = "loss") -> None:
        rows = tuple((step, 1.0, value) for step, value in points)
        said = Metrics(self.head, (name,), rows)
        await self.agent.send(self.head, self.count + 1, said, follows=self.count)
        self.count += 1
        await self.agent.stored(self.head, self.count)


async def set_lr(weaver: Weaver, **facts: Any) -> dict[str, Any]:
    asked = {"job": "job-1", "values": {"lr": 0.03}, "id": "c1", "author": "ann", **facts}
    return await CommandApi(weaver).set(SetRequest.read(asked))


async def begun(exchange: Exchange, *values: float) -> tuple[list[FakeRank], list[Curve]]:
    """Return two ranks that have logged a loss in steps before the second."""
    agent, ranks = await crowd(exchange, 2)
    await agent.hello()
    curves = [Curve(agent, rank) for rank in ranks]
    await curves[0].log(*enumerate(values))
    return ranks, curves


def applied(ranks: list[FakeRank]) -> list[list[Any]]:
    return [[value for _, _, value in rank.applied] for rank in ranks]


def test_a_change_whose_guard_fires_is_taken_back_on_all_ranks(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, (first, second) = await begun(exchange, 1.0, 2.0)
            outcome = await set_lr(weaver, guard="loss>2x", span=10)
            await second.log((2, 9.0))
            await first.log((2, 2.9), (3, 3.1))
            await until(lambda: applied(ranks) == [[0.03, 0.1]] * 2)

            watching = {"condition": "loss>2x", "steps": 10, "base": None}
            assert outcome["guard"] == {**watching, "state": "watching", "reason": ""}

    asyncio.run(scenario())

    why = "loss was 3.1 in step 3, 1.5 before"
    assert rows(tmp_path, GUARDS) == [("c1", "reverted", why, 1.5)]
    assert rows(tmp_path, NOTED) == [("guard_reverted", why)]
    reason = f"undo of c1: guard loss>2x: {why}"
    assert rows(tmp_path, COMMANDS) == [
        ("c1", "ann", "", "applied", 2),
        ("undo-c1", "guard", reason, "applied", 2),
    ]


def test_a_guard_goes_on_after_a_restart_of_the_weaver(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, curves = await begun(exchange, 1.0, 2.0)
            await set_lr(weaver, guard="loss>2x", span=10)
            await curves[0].log((2, 2.0))
        async with weaver_at(tmp_path, exchange):
            await until(lambda: curves[0].agent.epoch == 2)
            await curves[1].log((4, math.nan))
            await until(lambda: applied(ranks) == [[0.03, 0.1]] * 2)

    asyncio.run(scenario())

    assert rows(tmp_path, GUARDS) == [("c1", "reverted", "loss was nan in step 4, 1.5 before", 1.5)]


def test_a_change_whose_window_passes_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, curves = await begun(exchange, 1.0)
            await set_lr(weaver, guard="loss > 2", span=3)
            await curves[0].log((2, 1.0), (4, 1.5))
            await curves[0].log((5, 7.0))
            assert applied(ranks) == [[0.03]] * 2

    asyncio.run(scenario())

    assert rows(tmp_path, NOTED) == [("guard_kept", "2 values of loss in 3 steps")]


def test_a_change_that_was_changed_again_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, curves = await begun(exchange, 1.0)
            await set_lr(weaver, guard="loss > 2")
            await set_lr(weaver, values={"lr": 0.02}, id="c2")
            await curves[0].log((3, 7.0))
            assert applied(ranks) == [[0.03, 0.02]] * 2

    asyncio.run(scenario())

    ((_, state, why, _),) = rows(tmp_path, GUARDS)
    assert (state, "lr was changed again by c2" in why) == ("void", True)


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"guard": "loss"}, "'loss' is not a guard condition"),
        ({"guard": "lss>1"}, "no metric 'lss'; did you mean 'loss'?"),
        ({"guard": "loss>1", "span": 0}, "one step at least"),
    ],
)
def test_a_guard_that_could_not_watch_is_refused_and_nothing_is_changed(
    tmp_path: Path, facts: dict[str, Any], complaint: str
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, _ = await begun(exchange, 1.0)
            with pytest.raises(UserError, match=re.escape(complaint)):
                await set_lr(weaver, **facts)
            assert applied(ranks) == [[], []]

    asyncio.run(scenario())

    assert rows(tmp_path, GUARDS) == []


def test_a_change_is_undone_as_a_command_of_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, _ = await begun(exchange, 1.0)
            await set_lr(weaver)

            outcome = await CommandApi(weaver).undo(
                UndoRequest.read({"job": "job-1", "author": "bob"})
            )

            assert applied(ranks) == [[0.03, 0.1]] * 2
            assert outcome["payload"] == {"name": "lr", "value": 0.1, "hold": False, "undo": "c1"}
            assert (outcome["author"], outcome["reason"]) == ("bob", "undo of c1")
            with pytest.raises(NothingToUndo, match="no change of knobs is in force"):
                await CommandApi(weaver).undo(UndoRequest.read({"job": "job-1"}))

    asyncio.run(scenario())


def test_an_undo_whose_answer_was_lost_is_done_once_and_known_after_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            ranks, _ = await begun(exchange, 1.0)
            await set_lr(weaver)
            asked = UndoRequest.read({"job": "job-1", "author": "bob", "id": "u1"})

            first = await CommandApi(weaver).undo(asked)
            second = await CommandApi(weaver).undo(asked)
            weaver.jobs.end("job-1", JobState.COMPLETED, "over")
            third = await CommandApi(weaver).undo(asked)

            assert [one["payload"]["undo"] for one in (first, second, third)] == ["c1"] * 3
            assert applied(ranks) == [[0.03, 0.1]] * 2
            with pytest.raises(JobOver):
                await CommandApi(weaver).undo(UndoRequest.read({"job": "job-1", "id": "u2"}))

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT id FROM commands ORDER BY number") == [("c1",), ("u1",)]
