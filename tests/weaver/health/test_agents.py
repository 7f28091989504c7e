"""Agents and ranks are known by what they say, the same words twice change nothing."""

import asyncio
import time
from pathlib import Path

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Device,
    Goodbye,
    Greeting,
    Head,
    Hello,
    Progress,
    Welcome,
)

from ...harness.fake_agents import FakeAgent, crowd, register, rows, until, weaver_at

HEARTBEATS = "SELECT kind, rank FROM events ORDER BY seq"


def test_an_agent_is_greeted_and_its_ranks_and_devices_are_in_the_database(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, _ = await crowd(exchange, 2, devices=["GPU-1", "GPU-2"])
            agent.devices = (Device("GPU-1", "cuda", 0, 80),)

            greeting = await agent.hello()

            assert (greeting.agent, greeting.epoch, greeting.window) == ("node-1", 1, 64)
            await until(lambda: len(agent.of(Welcome)) == 2)

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT id, host, pid, state FROM agents") == [
        ("node-1", "node1", 42, "up")
    ]
    found = rows(tmp_path, "SELECT job, role, rank, agent, pid, devices, world_size FROM ranks")
    assert found == [
        ("job-1", "trainer", 0, "node-1", 1000, '["GPU-1","GPU-2"]', 2),
        ("job-1", "trainer", 1, "node-1", 1001, '["GPU-1","GPU-2"]', 2),
    ]
    assert rows(tmp_path, "SELECT uuid, kind, memory, state FROM devices ORDER BY uuid") == [
        ("GPU-1", "cuda", 80, "healthy"),
        ("GPU-2", "", 0, "healthy"),
    ]
    assert rows(tmp_path, "SELECT device, process FROM drmap ORDER BY device, process") == [
        ("GPU-1", "job-1/trainer/0"),
        ("GPU-1", "job-1/trainer/1"),
        ("GPU-2", "job-1/trainer/0"),
        ("GPU-2", "job-1/trainer/1"),
    ]
    assert rows(tmp_path, "SELECT id, state, run_id, attempt FROM jobs") == [
        ("job-1", "RUNNING", "job-1", 1)
    ]


def test_the_same_words_again_write_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, _ = await crowd(exchange, 4)
            await agent.hello()
            before = {name: rows(tmp_path, f"SELECT * FROM {name}") for name in TABLES}

            for _ in range(3):
                await agent.hello()

            assert {name: rows(tmp_path, f"SELECT * FROM {name}") for name in TABLES} == before

    TABLES = ("agents", "ranks", "drmap", "facts", "jobs", "events", "devices")
    asyncio.run(scenario())


def test_a_weaver_that_comes_back_calls_its_agents_and_has_the_same_map(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        agent, ranks = await crowd(exchange, 2)
        async with weaver_at(tmp_path, exchange) as first:
            await agent.hello()
            known = first.devices.map

        async with weaver_at(tmp_path, exchange) as second:
            await until(lambda: agent.epoch == 2)

            assert second.devices.map == known
            assert [row.incarnation for row in second.roster.ranks("job-1")] == [
                rank.head.incarnation for rank in ranks
            ]

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT epoch FROM epochs") == [(1,), (2,)]
    assert rows(tmp_path, HEARTBEATS) == [
        ("agent_up", -1),
        ("job_started", -1),
        ("rank_up", 0),
        ("rank_up", 1),
    ]


def test_a_rank_of_an_older_generation_is_not_taken_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 1, generation=3)
            await agent.hello()

            await agent.act(register(0, generation=2, incarnation="old"))
            await until(lambda: weaver.dropped["old_generation"])
            await agent.act(register(0, generation=4, incarnation="new"))
            await until(lambda: weaver.roster.of_incarnation("new"))

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT generation, incarnation FROM ranks") == [(4, "new")]
    assert rows(tmp_path, "SELECT generation FROM jobs") == [(4,)]


def test_nobody_speaks_for_another_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            bus = MemoryBus(exchange)
            head = Head(VERSION, "", 0, -1, "")
            said = Hello(head, "node-2", "h", "b", 1, 0)

            await bus.publish(subjects.hello("node-1"), encode(said))

            await until(lambda: weaver.dropped["foreign_agent"] == 1)
            assert weaver.roster.agents() == []

    asyncio.run(scenario())


def test_what_is_no_message_is_counted_and_nothing_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            hello = Hello(Head(9, "", 0, -1, ""), "node-1", "h", "b", 1, 0)
            bad = (b"", b"\xff" * 100, encode(hello), encode(rank.register)[:-3], b"\x90")

            for data in bad:
                for what in (subjects.hello, subjects.heartbeat, subjects.records, subjects.acts):
                    await agent.bus.publish(what("node-1"), data)
            await agent.hello()

            await until(lambda: sum(weaver.dropped.values()) == 20)
            assert weaver.dropped["version"] == 1
            assert weaver.bus.failures == 0
            assert len(weaver.roster.ranks("job-1")) == 1

    asyncio.run(scenario())


def test_beats_say_how_far_ranks_are_and_a_stranger_is_asked_to_say_hello(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)

            await agent.beat()
            await until(lambda: agent.epoch == 1)  # it was called, and said hello
            await agent.beat(Progress(rank.head, 412, 1, 0.1, 0.005))

            row = weaver.roster.ranks("job-1")[0]
            await until(lambda: weaver.heartbeats.progress(row))
            assert weaver.heartbeats.progress(row) == Progress(rank.head, 412, 1, 0.1, 0.005)

    asyncio.run(scenario())


def test_many_agents_that_come_at_once_are_all_taken_in(tmp_path: Path) -> None:
    async def scenario() -> float:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            bus = MemoryBus(exchange)
            agents = [FakeAgent(bus, f"node-{n}", f"n{n}") for n in range(300)]
            for n, agent in enumerate(agents):
                agent.rank(register(n, world=300))
            begun = time.monotonic()
            await asyncio.gather(*(agent.hello() for agent in agents))
            return time.monotonic() - begun

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT count(*) FROM agents") == [(300,)]
    assert rows(tmp_path, "SELECT count(*) FROM ranks") == [(300,)]


def test_an_agent_that_says_goodbye_is_not_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 0)
            await agent.hello()
            goodbye = Goodbye(Head(VERSION, "", 0, NO_RANK, "boot/42"), 0)

            await agent.bus.publish(subjects.acts("node-1"), encode(goodbye))

            await until(lambda: not weaver.heartbeats.present)

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT id, state FROM agents") == [("node-1", "left")]
    assert rows(tmp_path, HEARTBEATS) == [("agent_up", NO_RANK), ("agent_left", NO_RANK)]


def test_an_agent_that_obeys_a_later_weaver_is_not_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 1)
            agent.epoch = 7
            head = Head(VERSION, "", 0, -1, "")
            said = Hello(head, "node-1", "h", "b", 1, 7)

            await agent.bus.publish(subjects.hello("node-1"), encode(said))

            await until(lambda: weaver.dropped["newer_epoch"] == 1)
            assert agent.of(Greeting) == []

    asyncio.run(scenario())


def test_who_says_hello_again_is_greeted_and_its_ranks_welcomed_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, _ = await crowd(exchange, 2)
            await agent.hello()
            await until(lambda: len(agent.of(Welcome)) == 2)

            greeting = await agent.hello()

            assert (greeting.agent, greeting.epoch) == ("node-1", 1)
            await until(lambda: len(agent.of(Welcome)) == 4)
            agent.rank(register(2, world=3))
            await agent.hello()
            await until(lambda: len(agent.of(Welcome)) == 7)

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT rank FROM ranks ORDER BY rank") == [(0,), (1,), (2,)]


def test_who_says_hello_twice_before_it_is_his_turn_is_answered_twice(tmp_path: Path) -> None:
    answered: list[str] = []

    async def hear(subject: str, data: bytes, reply: str) -> None:
        answered.append(subject)

    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            bus = MemoryBus(exchange)
            said = encode(Hello(Head(VERSION, "", 0, -1, ""), "node-1", "h", "b", 1, 0))
            for reply in ("answer.1", "answer.2"):
                await bus.subscribe(reply, hear)

            for reply in ("answer.1", "answer.2"):
                await weaver.agents.on_hello(subjects.hello("node-1"), said, reply)

            await until(lambda: len(answered) == 2)

    asyncio.run(scenario())

    assert answered == ["answer.1", "answer.2"]
    assert rows(tmp_path, HEARTBEATS) == [("agent_up", NO_RANK)]


def test_an_agent_that_was_lost_is_up_again_by_the_same_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 2)
            await agent.hello()
            await agent.hello()
            weaver.roster.agents_lost({"node-1": "silent for 2.0 s"})
            assert {row.state for row in weaver.roster.ranks("job-1")} == {"lost"}

            await agent.beat()  # it is called, and says hello

            await until(lambda: {row.state for row in weaver.roster.ranks("job-1")} == {"up"})

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT state FROM agents") == [("up",)]
    assert rows(tmp_path, "SELECT DISTINCT state FROM ranks") == [("up",)]
