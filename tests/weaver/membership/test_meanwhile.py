"""What else goes on in a job when its members change: commands, checkpoints, beats, run folders."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.messages.membership import Broke, Fork, Transfer
from torchloom.messages.plane import Commit, Event, Outcome, Prepare, Progress, Welcome
from torchloom.rules.control.command import Command, CommandEntry, CommandKind, Status
from torchloom.weaver.commands.driver import wrapped
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import FakeRank, job_event, until, weaver_at
from .members import JOB, LiveAgent, events, recovered, trained

HASH = "blake3:" + "0" * 64


def changing(weaver: Weaver, value: float = 0.03) -> "asyncio.Task[CommandEntry]":
    command = Command("c1", CommandKind.KNOB, wrapped({"lr": value}, False), "ann", "why")
    return asyncio.create_task(weaver.commands.ask(JOB, command, 60.0))


async def break_off(agent: LiveAgent, is_death: bool) -> None:
    """End the generation, with or without the end of somebody."""
    if is_death:
        await agent.launch.kill(2)
    else:
        await agent.act(Broke(agent.members[0].head, 2, True))


def applied(agent: LiveAgent) -> list[list[tuple[int, Any]]]:
    return [[(s, v) for _, s, v in member.applied] for _, member in sorted(agent.members.items())]


@pytest.mark.parametrize("is_death", [True, False])
def test_a_change_that_is_not_decided_is_offered_to_the_next_generation(
    tmp_path: Path, is_death: bool
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.members[1].silent.add(Prepare)
            change = changing(weaver)
            await until(lambda: agent.members[1].of(Prepare))

            await break_off(agent, is_death)
            await until(lambda: weaver.live_attempts.is_recovering(JOB))
            agent.members[1].silent.clear()
            await recovered(agent, weaver, 1)
            entry = await change

            assert (entry.status, entry.generation, entry.step) == (Status.APPLIED, 1, 2)
            assert applied(agent) == [[(2, 0.03)]] * 3

    asyncio.run(scenario())


def test_a_change_whose_step_is_not_reached_acts_in_the_next_generation(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            for member in agent.members.values():
                member.step = 20
                member.silent.add(Outcome)
            change = changing(weaver)
            await until(lambda: agent.members[1].of(Outcome))

            await agent.launch.kill(2)
            for member in agent.members.values():
                member.silent.clear()
            await recovered(agent, weaver, 1)
            entry = await change

            assert (entry.status, entry.generation, entry.step) == (Status.APPLIED, 1, 22)
            assert applied(agent) == [[(22, 0.03)]] * 3

    asyncio.run(scenario())


def test_a_change_that_is_in_force_is_closed_and_told_to_the_newcomer(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.members[2].silent.add(Outcome)
            change = changing(weaver)
            await until(lambda: agent.members[2].of(Outcome) and agent.members[1].applied)

            await agent.launch.kill(2)
            entry = await change

            why = "in force when generation 1 began with step 9"
            assert (entry.status, entry.step, entry.why) == (Status.APPLIED, 2, why)
            assert applied(agent) == [[(2, 0.03)], [(2, 0.03)], []]
            (welcome, *_) = agent.members[2].of(Welcome)
            assert [(one.command, one.step) for one in welcome.changes] == [("c1/1", 2)]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_death", [True, False])
def test_nothing_is_offered_to_a_generation_that_is_over_or_does_not_train_yet(
    tmp_path: Path, is_death: bool
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.members[1].silent.add(Transfer)
            await break_off(agent, is_death)
            await until(lambda: agent.members[1].of(Transfer))
            await agent.members[1].joins(1)  # all are registered in it
            change = changing(weaver)
            await until(lambda: [row.generation for row in weaver.roster.ranks(JOB)] == [1, 1, 1])
            weaver.tick()
            assert agent.of(Prepare) == []

            agent.members[1].silent.clear()
            await recovered(agent, weaver, 1)

            assert (await change).status is Status.APPLIED

    asyncio.run(scenario())


async def write(agent: LiveAgent, rank: FakeRank, step: int) -> None:
    head = rank.head
    facts: dict[str, Any] = {"step": step, "world_size": 3, "name": f"worker_{head.rank}.pt"}
    facts |= {"size": 100, "hash": HASH, "trigger": "every_n_steps", "attempt": 1}
    facts |= {"generation": head.generation, "rank": head.rank}
    await agent.send(head, step, Event(head, "checkpoint_shard", step, time.time(), facts))
    await agent.stored(head, step)


def test_a_draft_of_an_older_generation_is_given_up_and_one_of_the_new_counts(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            await agent.act(job_event("job", JOB, checkpoints="/runs/1"))
            await write(agent, agent.members[0], 8)
            await write(agent, agent.members[2], 8)
            agent.launch.silent.add(Fork)

            await agent.launch.kill(2)
            await until(lambda: agent.launch.of(Fork))
            await write(agent, agent.members[1], 8)
            await until(lambda: [row.state for row in weaver.checkpoint_rows.of(JOB)] == ["failed"])
            agent.launch.silent.clear()
            await recovered(agent, weaver, 1)
            for member in agent.members.values():
                await write(agent, member, 10)
            await until(lambda: agent.of(Commit))

            found = [(one.step, one.generation) for one in agent.of(Commit)]
            assert set(found) == {(10, 1)}
            assert [event[0] for event in events(weaver, "checkpoint_refused")] == [
                "checkpoint_refused"
            ]

    asyncio.run(scenario())


def test_who_waits_for_a_newcomer_is_no_suspect(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await trained(exchange, weaver)
            agent.members[1].silent.add(Transfer)
            await agent.launch.kill(2)
            await until(lambda: agent.members[1].of(Transfer))

            await agent.beat(Progress(agent.members[0].head, 9, 1, 100.0, 0.1))
            await agent.members[0].trains()  # heard after the beat
            agent.members[1].silent.clear()
            await recovered(agent, weaver, 1)
            assert events(weaver, "rank_suspect") == []

            await agent.beat(Progress(agent.members[0].head, 9, 1, 100.0, 0.1))
            await until(lambda: events(weaver, "rank_suspect"))

    asyncio.run(scenario())


def test_a_stop_that_all_have_done_leaves_the_rest_to_the_launch_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            await trained(exchange, weaver)

            entry = await weaver.commands.ask(JOB, Command("s1", CommandKind.STOP, {}, "ann"), 60.0)

            assert entry.status is Status.APPLIED
            assert weaver.live_recovery.watched() == frozenset()

    asyncio.run(scenario())
