"""The agent of a unix account: it speaks for the jobs of its account, and for nothing else."""

import asyncio
from pathlib import Path

import msgspec

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.messages.plane import Device, DeviceEvent, Event, Hello
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import JobRow

from ..harness.fake_agents import FakeAgent, job_event, register, rows, until, weaver_at

OWN, OTHER, PLANES = "job-own", "job-other", "job-plane"


def submitted(weaver: Weaver) -> None:
    """Have a job of each of two accounts, and one of the plane's own user."""
    for name, account in ((OWN, "games"), (OTHER, "daemon"), (PLANES, "")):
        facts = {"submitted": True}
        weaver.jobs.submit(
            JobRow(name, name=name, owner="ada", run_id=name, facts=facts, account=account)
        )


async def agent_of(exchange: Exchange, account: str) -> FakeAgent:
    agent = FakeAgent(MemoryBus(exchange), subjects.agent_of_account("node1", account))
    await agent.start()
    return agent


def test_ranks_and_records_of_other_jobs_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            submitted(weaver)
            agent = await agent_of(exchange, "games")
            own = agent.rank(register(0, job=OWN))
            for job in (OTHER, PLANES, "job-unknown"):
                agent.rank(register(0, job=job, incarnation=f"i-{job}"))

            await agent.hello()
            await until(lambda: weaver.roster.ranks(OWN))
            for number, rank in enumerate(agent.ranks.values(), 1):
                await agent.act(rank.register)
                await agent.send(rank.head, 1, Event(rank.head, "note", number, 0.0))
            await agent.stored(own.head, 1)
            await until(lambda: weaver.dropped["foreign_job"] == 9)

            assert [len(weaver.roster.ranks(job)) for job in (OWN, OTHER, PLANES)] == [1, 0, 0]
            assert weaver.jobs.get("job-unknown") is None

        assert rows(tmp_path, "SELECT job FROM events", "records") == [(OWN,)]

    asyncio.run(scenario())


def test_only_agents_of_its_account_speak_for_a_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with weaver_at(tmp_path, Exchange()) as weaver:
            submitted(weaver)
            games, daemon = (subjects.agent_of_account("node1", one) for one in ("games", "daemon"))
            agents = ("node1", games, daemon, subjects.agent_of_job("node1", OTHER))

            heard = {
                job: [agent for agent in agents if weaver.roster.may_speak(agent, job)]
                for job in (OWN, OTHER, PLANES)
            }

            assert heard == {OWN: [games], OTHER: [daemon], PLANES: ["node1"]}

    asyncio.run(scenario())


def test_what_it_says_of_the_host_and_its_devices_counts_for_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            submitted(weaver)
            nodes = FakeAgent(MemoryBus(exchange))
            nodes.devices = (Device("gpu-1", "cuda", 0, 1),)
            await nodes.start()
            await nodes.hello()
            agent = await agent_of(exchange, "games")
            devices = (Device("gpu-2", "cuda", 0, 1),)
            head = agent.head
            said = Hello(head, agent.name, "node1", "boot", 43, 0, devices, ())
            said = msgspec.structs.replace(said, cpus=64, memory_mb=1 << 20)
            await agent.bus.request(subjects.hello(agent.name), encode(said), 10.0)

            failed = DeviceEvent(head, "gpu-1", "failed", "games", "it says so")
            await agent.bus.publish(subjects.devices(agent.name), encode(failed))
            await until(lambda: weaver.dropped["foreign_device"] == 1)

            assert [device.uuid for device in weaver.devices.all()] == ["gpu-1"]
            assert [device.state for device in weaver.devices.all()] == ["healthy"]
            assert agent.name not in weaver.coordinator.queue.state.nodes

    asyncio.run(scenario())


def test_it_renames_no_job_and_gives_it_to_no_other_owner(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            submitted(weaver)
            agent = await agent_of(exchange, "games")
            await agent.hello()
            words = {"owner": "eve", "run_id": OTHER, "name": "x", "handle": "local://x/y"}

            await agent.act(job_event("job", OWN, **words, noted=1))
            await until(lambda: (job := weaver.jobs.get(OWN)) and job.facts.get("noted"))

            known = weaver.jobs.get(OWN)
            assert known is not None
            assert (known.owner, known.run_id, known.name, known.account) == (
                *("ada", OWN, OWN),
                "games",
            )

    asyncio.run(scenario())
