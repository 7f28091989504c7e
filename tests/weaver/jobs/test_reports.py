"""Batches are stored once and answered after; what they report is taken in."""

import asyncio
from pathlib import Path

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.memory import Exchange
from torchloom.messages.plane import NO_RANK, VERSION, Batch, Event, Goodbye, Head, Metrics, Stored

from ...harness.fake_agents import crowd, job_event, register, rows, until, weaver_at
from ...harness.metric_rows import in_file

EVENTS = "SELECT number, kind, step FROM events ORDER BY id"


def test_records_are_stored_before_they_are_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            curve = Metrics(rank.head, ("loss",), ((1, 10.0, 0.5), (2, 11.0, 0.4)))

            await agent.send(rank.head, 1, curve, Event(rank.head, "nan", 2, 12.0, {"x": 1}))
            await agent.stored(rank.head, 2)

            assert agent.of(Stored) == [Stored(rank.head, 1, 2)]
            points = in_file(tmp_path / "records.db")
            assert {place[-1]: tuple(point) for place, point in points.items()} == {
                1: (0, 10.0, 0.5),
                2: (0, 11.0, 0.4),
            }
            assert rows(tmp_path, EVENTS, "records") == [(2, "nan", 2)]

    asyncio.run(scenario())


def test_what_is_sent_again_is_answered_again_and_stored_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            events = [Event(rank.head, "x", n, 0.0) for n in range(1, 7)]

            await agent.send(rank.head, 5, *events[4:6], follows=4)  # one before it was lost
            await agent.send(rank.head, 1, *events[:4])
            await agent.send(rank.head, 1, *events[:4])
            await agent.send(rank.head, 5, *events[4:6], follows=4)
            await agent.stored(rank.head, 6)

            assert [said.upto for said in agent.of(Stored)] == [0, 4, 4, 6]
            stored = [(n, "x", n) for n in range(1, 7)]
            assert rows(tmp_path, EVENTS, "records") == stored

    asyncio.run(scenario())


def test_after_a_restart_counting_goes_on_where_the_database_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        agent, (rank,) = await crowd(exchange, 1)
        events = [Event(rank.head, "x", n, 0.0) for n in range(1, 5)]
        async with weaver_at(tmp_path, exchange):
            await agent.hello()
            await agent.send(rank.head, 1, *events[:3])
            await agent.stored(rank.head, 3)

        async with weaver_at(tmp_path, exchange):
            await agent.send(rank.head, 1, *events)
            await agent.stored(rank.head, 4)

        assert rows(tmp_path, EVENTS, "records") == [(n, "x", n) for n in range(1, 5)]

    asyncio.run(scenario())


def test_a_record_of_another_job_or_no_record_keeps_its_number_and_is_nothing(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            foreign = Event(Head(VERSION, "other", 0, 0, "i"), "x", 1, 0.0)
            own = Event(rank.head, "x", 3, 0.0)
            data = (encode(foreign), b"\xff\xff", encode(own), b"")

            batch = Batch(rank.head, agent.name, 1, data)
            await agent.bus.publish(subjects.records(agent.name), encode(batch))
            await agent.stored(rank.head, 4)

            assert rows(tmp_path, EVENTS, "records") == [(3, "x", 3)]
            assert weaver.dropped == {"foreign_job": 1, "malformed": 1}

    asyncio.run(scenario())


def test_records_of_an_older_generation_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, _ = await crowd(exchange, 1, generation=5)
            await agent.hello()
            old = Head(VERSION, "job-1", 4, 0, "before")

            await agent.send(old, 1, Event(old, "x", 9, 0.0))
            await agent.stored(old, 1)

            query = "SELECT generation, step FROM events"
            assert rows(tmp_path, query, "records") == [(4, 9)]

    asyncio.run(scenario())


def test_a_job_is_named_by_its_launch_process_and_ended_by_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 2)
            facts = {"name": "gpt", "owner": "ann", "scheduler": "local", "handle": "local://x/1"}
            begin = job_event("job", **facts)
            await agent.send(begin.head, 1, begin)
            await agent.stored(begin.head, 1)
            await agent.hello()
            await until(lambda: len(weaver.roster.ranks("job-1")) == 2)

            end = job_event("job_ended", state="FAILED", reason="exit_code_1_rank_0")
            await agent.send(begin.head, 2, end, follows=1)
            await agent.send(begin.head, 2, end, follows=1)
            await agent.stored(begin.head, 2)
            await agent.hello()  # it still has the ranks, which must not bring the job back
            await until(lambda: weaver.dropped["ended_job"] == 2)

    asyncio.run(scenario())

    job = rows(tmp_path, "SELECT name, owner, scheduler, handle, state, reason FROM jobs")
    assert job == [("gpt", "ann", "local", "local://x/1", "FAILED", "exit_code_1_rank_0")]
    assert rows(tmp_path, "SELECT state FROM ranks") == [("gone",), ("gone",)]
    assert rows(tmp_path, "SELECT * FROM drmap") == []
    ended = "SELECT count(*) FROM events WHERE kind = 'job_state'"
    assert rows(tmp_path, ended) == [(1,)]


def test_a_job_that_nobody_launched_ends_with_its_ranks_and_begins_again_with_new_ones(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, ranks = await crowd(exchange, 2)
            await agent.hello()
            for rank in ranks:
                await agent.act(Goodbye(rank.head, 100))
            await until(lambda: not weaver.jobs.active())
            assert rows(tmp_path, JOB) == [("COMPLETED", "ranks_ended", 1)]

            await agent.hello()  # the same lives, not buried yet
            await until(lambda: weaver.dropped["ended_job"] == 2)
            await agent.act(register(0, world=2, incarnation="again"))
            await until(weaver.jobs.active)
            assert rows(tmp_path, JOB) == [("RUNNING", "started_again", 2)]

    JOB = "SELECT state, reason, attempt FROM jobs"
    asyncio.run(scenario())


def test_a_job_that_is_launched_waits_for_the_word_of_its_launch_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.act(register(NO_RANK, incarnation="launcher"))
            await agent.hello()

            await agent.act(Goodbye(rank.head, 100))
            await until(lambda: not list(weaver.roster.living()))

            assert [job.state for job in weaver.jobs.active()] == ["RUNNING"]

    asyncio.run(scenario())


def test_a_rank_that_says_goodbye_or_whose_exit_is_told_is_not_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (first, second, _) = await crowd(exchange, 3)
            await agent.hello()

            await agent.act(Goodbye(first.head, 100))
            exit_told = Event(second.head, "exit", 7, 0.0, {"reason": "exit_signal_9_rank_1"})
            await agent.send(second.head, 1, exit_told)
            await agent.stored(second.head, 1)
            await until(lambda: len(list(weaver.roster.living())) == 1)

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT rank, state, reason FROM ranks ORDER BY rank") == [
        (0, "ended", "ended"),
        (1, "gone", "exit_signal_9_rank_1"),
        (2, "up", ""),
    ]
