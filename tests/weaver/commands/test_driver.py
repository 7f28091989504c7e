"""A command acts in one step on all ranks, is stored before it is said, and outlives the weaver."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.messages.plane import Message, Outcome, Planned, Prepare, Welcome, Write
from torchloom.rules.control.command import Command, CommandEntry, CommandKind, Status
from torchloom.weaver.commands.driver import wrapped
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import DatabasePlace

from ...harness.fake_agents import FakeRank, crowd, job_event, register, rows, until, weaver_at
from ...harness.postgres_server import new_database

ROWS = "SELECT state, effective, before, after, author, outcome FROM commands ORDER BY number"
STATES = "SELECT kind FROM events WHERE kind LIKE 'command%' ORDER BY seq"


async def change(weaver: Weaver, value: float, name: str = "c1", **words: Any) -> CommandEntry:
    command = Command(name, CommandKind.KNOB, wrapped({"lr": value}, False), "ann", "why", **words)
    return await weaver.commands.ask("job-1", command, 10.0)


def done(value: float, before: float) -> dict[str, Any]:
    """Return the payload of a change that ranks have applied."""
    return {"name": "lr", "value": value, "hold": False, "before": {"lr": before}}


def steps(ranks: list[FakeRank]) -> list[list[tuple[int, Any]]]:
    return [[(step, value) for _, step, value in rank.applied] for rank in ranks]


def test_a_knob_is_changed_in_the_same_step_on_all_ranks(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 4)
            for number, rank in enumerate(ranks):
                rank.step = 40 + number
            await agent.hello()

            entry = await change(weaver, 0.03)

            assert (entry.status, entry.step) == (Status.APPLIED, 45)
            assert steps(ranks) == [[(45, 0.03)]] * 4

    asyncio.run(scenario())

    assert rows(tmp_path, ROWS) == [("applied", 45, "0.1", "0.03", "ann", "")]
    acks = rows(tmp_path, "SELECT rank, state, step, before, after FROM command_acks ORDER BY 1")
    assert acks == [(rank, "applied", 45, "0.1", "0.03") for rank in range(4)]
    assert rows(tmp_path, STATES) == [
        ("command_accepted",),
        ("command_preparing",),
        ("command_committed",),
        ("command_applied",),
    ]


@pytest.mark.process
def test_the_same_over_postgres_with_a_restart_in_between(postgres: str) -> None:
    import psycopg

    url = new_database(postgres, "commands")

    async def scenario() -> None:
        exchange = Exchange()
        agent, ranks = await crowd(exchange, 2)
        async with weaver_at(DatabasePlace(None, url), exchange) as weaver:
            await agent.hello()
            await change(weaver, 0.03)
        async with weaver_at(DatabasePlace(None, url), exchange) as weaver:
            await until(lambda: agent.epoch == 2)
            await change(weaver, 0.04, "c2")
            await agent.send(ranks[0].head, 1, job_event("x"))
            await agent.stored(ranks[0].head, 1)
        assert steps(ranks) == [[(2, 0.03), (2, 0.04)]] * 2

    asyncio.run(scenario())

    with psycopg.connect(url) as connection:
        query = "SELECT id, state, effective, after FROM state.commands ORDER BY number"
        found = connection.execute(query.encode()).fetchall()
    assert found == [("c1", "applied", 2, "0.03"), ("c2", "applied", 2, "0.04")]


def test_a_command_is_stored_before_a_rank_hears_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            seen: list[tuple[str, str]] = []

            def look(message: Message) -> bool:
                ((state,),) = rows(tmp_path, "SELECT state FROM commands")
                seen.append((type(message).__name__, state))
                return False

            await until(lambda: agent.of(Welcome))
            rank.is_deaf = look
            await change(weaver, 0.03)

            heard = [message for message, _ in seen]
            assert heard == ["Prepare", "Write", "Outcome"]
            assert seen[0] == ("Prepare", "preparing")  # the rest stands in the ranks' own store
            assert rows(tmp_path, "SELECT state FROM commands") == [("applied",)]

    asyncio.run(scenario())


def test_a_command_waits_until_all_ranks_are_there_with_boundaries(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 0)
            first = agent.rank(register(0, world=2, boundary="none"))
            await agent.hello()
            asked = asyncio.create_task(change(weaver, 0.03))

            second = agent.rank(register(1, world=2, boundary="attached"))
            second.store = first.store
            await agent.hello()
            await asyncio.sleep(0)
            assert agent.of(Prepare) == []
            first.register = register(0, world=2, boundary="attached")
            await agent.act(first.register)

            assert (await asked).status is Status.APPLIED
            assert steps([first, second]) == [[(2, 0.03)]] * 2

    asyncio.run(scenario())


def test_a_rank_that_refuses_ends_the_command_in_its_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 3)
            ranks[1].refuses = "steps are taken on another thread"
            await agent.hello()

            entry = await change(weaver, 0.03)

            words = "rank 1: steps are taken on another thread"
            assert (entry.status, entry.why) == (Status.REFUSED, words)
            assert steps(ranks) == [[], [], []]

    asyncio.run(scenario())


def test_the_same_id_twice_is_one_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 2)
            await agent.hello()

            both = await asyncio.gather(change(weaver, 0.03), change(weaver, 0.03))
            again = await change(weaver, 0.03)

            assert both == [again, again]
            assert steps(ranks) == [[(2, 0.03)]] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", [Prepare, Write, Outcome])
def test_a_weaver_that_ends_at_any_point_is_followed_by_one_that_goes_on(
    tmp_path: Path, lost: type[Message]
) -> None:
    """The ranks do not hear one kind of message from the first weaver, then it is gone."""

    async def scenario() -> None:
        exchange = Exchange()
        agent, ranks = await crowd(exchange, 2)
        async with weaver_at(tmp_path, exchange) as first:
            await agent.hello()
            for rank in ranks:
                rank.is_deaf = lambda message: isinstance(message, lost)
            asked = asyncio.create_task(change(first, 0.03))
            await until(lambda: agent.of(lost))
            asked.cancel()

        for rank in ranks:
            rank.is_deaf = lambda message: False
        async with weaver_at(tmp_path, exchange) as second:
            await until(lambda: second.commands.state("job-1").closed)
            (entry,) = second.commands.state("job-1").audit

            assert entry.status is Status.APPLIED
            assert steps(ranks) == [[(entry.step, 0.03)]] * 2

    asyncio.run(scenario())


def test_a_pending_command_is_offered_to_the_next_generation(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 2)
            await agent.hello()
            ranks[1].is_deaf = lambda message: True
            asked = asyncio.create_task(change(weaver, 0.03))
            await until(lambda: len(agent.of(Prepare)) == 2)

            new = [agent.rank(register(n, world=2, generation=1)) for n in range(2)]
            new[0].store = new[1].store
            del agent.ranks[ranks[0].head.incarnation], agent.ranks[ranks[1].head.incarnation]
            await agent.hello()
            entry = await asked

            assert (entry.status, entry.generation) == (Status.APPLIED, 1)
            assert steps(new) == [[(entry.step, 0.03)]] * 2

    asyncio.run(scenario())


def test_what_was_committed_and_not_reached_is_done_by_the_next_generation(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 2)
            await agent.hello()
            for rank in ranks:
                rank.is_deaf = lambda message: isinstance(message, Outcome)
            asked = asyncio.create_task(change(weaver, 0.03, at_step=50))
            await until(lambda: len(agent.of(Outcome)) == 2)

            agent.ranks.clear()
            new = [agent.rank(register(n, world=2, generation=1)) for n in range(2)]
            await agent.hello()  # these have never heard of the command
            entry = await asked

            assert (entry.status, entry.step, entry.generation) == (Status.APPLIED, 50, 1)
            assert steps(new) == [[(50, 0.03)]] * 2

    asyncio.run(scenario())


def test_a_late_joiner_hears_of_all_changes_and_their_steps_with_its_welcome(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 1)
            await agent.hello()
            await change(weaver, 0.03)
            await change(weaver, 0.02, "c2", at_step=9)
            ranks[0].is_deaf = lambda message: isinstance(message, Outcome)
            later = asyncio.create_task(change(weaver, 0.01, "c3", at_step=50))
            await until(lambda: len(agent.of(Outcome)) == 3)

            await agent.act(register(0, generation=1, incarnation="late"))

            await until(lambda: agent.of(Welcome)[-1].head.incarnation == "late")
            assert agent.of(Welcome)[0].changes == ()
            assert agent.of(Welcome)[-1].changes == (
                Planned("c1/1", 2, done(0.03, 0.1), True),
                Planned("c2/1", 9, done(0.02, 0.1), True),
                Planned("c3/1", 50, {"name": "lr", "value": 0.01, "hold": False}, False),
            )
            assert agent.of(Welcome)[-1].epoch == 1
            later.cancel()

    asyncio.run(scenario())


def test_what_is_open_when_the_job_ends_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            rank.is_deaf = lambda message: True
            await agent.hello()
            asked = asyncio.create_task(change(weaver, 0.03))
            await until(lambda: agent.of(Prepare))

            await agent.act(job_event("job_ended", state="CANCELLED", reason="cancelled_by_user"))
            entry = await asked

            assert entry.status is Status.ABORTED
            assert entry.why == "the job has ended: cancelled_by_user"

    asyncio.run(scenario())


def test_words_of_an_older_generation_or_a_foreign_agent_move_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            rank.is_deaf = lambda message: True
            asked = asyncio.create_task(change(weaver, 0.03))
            await until(lambda: agent.of(Prepare))
            from torchloom.bus import subjects
            from torchloom.bus.codec import encode
            from torchloom.messages.plane import Applied, Head

            name = agent.of(Prepare)[0].command
            theirs = Head(1, "job-1", -1, 0, rank.head.incarnation)
            await agent.act(Applied(theirs, name, 2))
            await agent.act(Applied(rank.head, "no such thing", 2))
            forged = encode(Applied(rank.head, name, 2))
            await agent.bus.publish(subjects.acts("node-2"), forged)

            await until(lambda: weaver.dropped["foreign_agent"])
            assert weaver.dropped == {"old_generation": 1, "foreign_agent": 1}
            assert weaver.commands.state("job-1").queue[0].status is Status.PREPARING
            asked.cancel()

    asyncio.run(scenario())


def test_many_changes_at_once_are_done_in_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 4)
            await agent.hello()
            values = [n / 100 for n in range(30)]

            changes = (change(weaver, value, f"c{n}") for n, value in enumerate(values))
            done = await asyncio.gather(*changes)

            assert {entry.status for entry in done} == {Status.APPLIED}
            assert [[value for _, value in rank] for rank in steps(ranks)] == [values] * 4

    asyncio.run(scenario())

    stored = rows(tmp_path, "SELECT after FROM commands ORDER BY number")
    assert [json.loads(after) for (after,) in stored] == [n / 100 for n in range(30)]
