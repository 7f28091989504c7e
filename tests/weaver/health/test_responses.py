"""A failed device, a NaN or a silent agent concerns exactly those whom it concerns."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus import subjects
from torchloom.bus.codec import encode
from torchloom.bus.memory import Exchange
from torchloom.messages.plane import (
    NO_RANK,
    VERSION,
    Device,
    DeviceEvent,
    Event,
    Head,
    Heartbeat,
    Kill,
    Progress,
)
from torchloom.rules.devices import DeviceState
from torchloom.weaver.health.devices import DeviceAlert, NoAlerts, read_alerts
from torchloom.weaver.jobs.registry import failure_policy

from ...harness.fake_agents import FakeAgent, crowd, job_event, register, rows, until, weaver_at
from ...harness.home import allowed

NOBODY = Head(VERSION, "", 0, NO_RANK, "")


async def two_groups(exchange: Exchange, **policy: Any) -> FakeAgent:
    """Return an agent with A0, A1, B0, B1: two replica groups of two ranks, a device each."""
    agent, _ = await crowd(exchange, 0)
    for rank in range(4):
        devices, replica = [f"GPU-{rank}"], "AABB"[rank]
        agent.rank(register(rank, world=4, devices=devices, replica=replica))
    agent.rank(register(0, job="other", devices=["GPU-9"]))
    await agent.act(job_event("job", policy=policy))
    await agent.hello()
    return agent


def killed(agent: FakeAgent) -> list[tuple[str, int]]:
    return sorted({(kill.head.job, kill.head.rank) for kill in agent.of(Kill)})


def test_a_failed_device_ends_exactly_the_replica_group_that_uses_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent = await two_groups(exchange, recovery="live")
            said = DeviceEvent(NOBODY, "GPU-2", "failed", "dcgm", "XID 79")
            begun = time.monotonic()

            await agent.bus.publish(subjects.DEVICE_EVENTS, encode(said))
            await until(lambda: len(killed(agent)) == 2)

            assert time.monotonic() - begun < allowed(1.0)  # `loom bench control` has the figure
            assert killed(agent) == [("job-1", 2), ("job-1", 3)]
            kill = agent.of(Kill)[0]
            assert (kill.epoch, kill.signal, kill.reason) == (1, 9, "device_failed_GPU-2")
            assert kill.head.incarnation == "job-1-trainer-2-0"

    asyncio.run(scenario())

    marked = rows(tmp_path, "SELECT rank, reason FROM ranks WHERE reason <> ''")
    assert marked == [(2, "device_failed_GPU-2")]
    device = rows(tmp_path, "SELECT state, source, reason FROM devices WHERE uuid = 'GPU-2'")
    assert device == [("failed", "dcgm", "XID 79")]
    noted = rows(tmp_path, "SELECT kind, rank FROM events WHERE kind IN ('kill','restart')")
    assert noted == [("kill", 2), ("kill", 3), ("restart", -1)]


def test_a_device_that_nobody_uses_is_told_of_and_nobody_is_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await two_groups(exchange)
            said = DeviceEvent(NOBODY, "50", "failed", "test")

            await agent.bus.publish(subjects.DEVICE_EVENTS, encode(said))
            await until(lambda: weaver.devices.get("50"))

            assert killed(agent) == []

    asyncio.run(scenario())

    ((facts,),) = rows(tmp_path, "SELECT facts FROM events WHERE kind = 'notice'")
    assert json.loads(facts) == {"words": "Device 50 not found in device-to-replicas map"}


@pytest.mark.process
def test_a_rank_that_lives_on_is_ended_again_until_it_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await two_groups(exchange, recovery="live")
            weaver.responses.device("GPU-9", DeviceState.FAILED, "test", "")
            await until(lambda: len(agent.of(Kill)) >= 2)  # the first was not obeyed

            head = agent.ranks["other-trainer-0-0"].head
            gone = Event(head, "exit", 1, 0.0, {"reason": "exit_signal_9_rank_0"})
            await agent.send(head, 1, gone)
            await agent.stored(head, 1)
            weaver.responses.tick()

            assert weaver.responses._ending == {}

    asyncio.run(scenario())


def test_a_nan_is_told_of_and_ends_a_job_only_if_it_wants_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent = await two_groups(exchange, on_loss="fail")
            for job, life in (("job-1", "job-1-trainer-1-0"), ("other", "other-trainer-0-0")):
                head = agent.ranks[life].head
                await agent.send(head, 1, Event(head, "nan", 7, 0.0))
                await agent.send(head, 1, Event(head, "nan", 7, 0.0))
                await agent.stored(head, 1)
                assert job == head.job
            await until(lambda: len(killed(agent)) == 4)

            assert killed(agent) == [("job-1", rank) for rank in range(4)]

    asyncio.run(scenario())

    noted = rows(tmp_path, "SELECT job, reason FROM events WHERE kind = 'notice' ORDER BY seq")
    assert noted == [("job-1", "loss_not_finite_rank_1"), ("other", "loss_not_finite_rank_0")]


def test_a_nan_of_an_earlier_life_ends_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent = await two_groups(exchange, on_loss="fail")
            old = Head(VERSION, "job-1", 0, 1, "an earlier life")

            await agent.send(old, 1, Event(old, "nan", 7, 0.0))
            await agent.stored(old, 1)

            assert killed(agent) == []

    asyncio.run(scenario())


@pytest.mark.process
def test_a_silent_agent_is_lost_its_ranks_are_out_of_sight_and_nobody_is_ended(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await two_groups(exchange)
            await agent.beat()
            await until(lambda: weaver.roster.agents()[0].state == "lost")
            assert rows(tmp_path, "SELECT DISTINCT state FROM ranks") == [("lost",)]

            await agent.beat()  # it is there again, and asked to say hello
            await until(lambda: weaver.roster.agents()[0].state == "up")

            assert rows(tmp_path, "SELECT DISTINCT state FROM ranks") == [("up",)]
            assert killed(agent) == []

    asyncio.run(scenario())


def test_a_rank_that_stands_still_is_suspect_until_it_moves(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            beats = ((1.0, 5, 1.5), (2.0, 5, 2.5), (3.0, 6, 0.1))

            for sent, step, moved in beats:
                progress = (Progress(rank.head, step, 1, moved, 0.1),)
                said = Heartbeat(NOBODY, agent.name, sent, progress)
                await agent.bus.publish(subjects.heartbeat(agent.name), encode(said))
            waiting = Progress(rank.head, 6, 2, 900.0, 0.1)  # in a pause
            await agent.beat(waiting)

            await until(
                lambda: weaver.heartbeats.progress(weaver.roster.ranks("job-1")[0]) == waiting
            )
            assert weaver.hangs.suspects == {}
            assert killed(agent) == []

    asyncio.run(scenario())

    query = "SELECT kind, rank FROM events WHERE kind LIKE 'rank_%' ORDER BY seq"
    assert rows(tmp_path, query) == [("rank_up", 0), ("rank_suspect", 0), ("rank_cleared", 0)]


ALERT = {
    "status": "firing",
    "labels": {"alertname": "GpuXid", "UUID": "GPU-3", "gpu": "3", "device": "nvidia3"},
    "annotations": {"summary": "XID 79"},
}


def test_an_alertmanager_message_is_understood() -> None:
    other = {"status": "firing", "labels": {"alertname": "DiskFull"}}
    drain = {"status": "firing", "labels": {"device_uuid": "GPU-1", "loom_state": "draining"}}
    well = {"status": "resolved", "labels": {"alertname": "GpuXid", "UUID": "GPU-2"}}
    message = {"version": "4", "status": "firing", "alerts": [ALERT, other, drain, well]}

    assert read_alerts(json.dumps(message).encode()) == [
        DeviceAlert("GPU-3", DeviceState.FAILED, "alertmanager", "GpuXid: XID 79"),
        DeviceAlert("GPU-1", DeviceState.DRAINING, "alertmanager", "alert"),
        DeviceAlert("GPU-2", DeviceState.HEALTHY, "alertmanager", "GpuXid"),
    ]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"alerts": 3}', b'{"alerts": [1]}', b"[" * 100_000]
)
def test_what_alertmanager_never_sends_is_refused(data: bytes) -> None:
    with pytest.raises(NoAlerts):
        read_alerts(data)


def test_an_alert_on_the_bus_acts_like_any_device_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await two_groups(exchange, recovery="live")
            message = json.dumps({"alerts": [ALERT]}).encode()

            await agent.bus.publish(subjects.DEVICE_ALERTS, b"no JSON")
            await agent.bus.publish(subjects.DEVICE_ALERTS, message)
            await until(lambda: len(killed(agent)) == 2)

            assert killed(agent) == [("job-1", 2), ("job-1", 3)]
            assert weaver.dropped == {"malformed": 1}

    asyncio.run(scenario())


def test_an_agent_speaks_for_the_devices_of_its_own_node_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent = await two_groups(exchange, recovery="live")
            agent.devices = (Device("GPU-2", "cuda", 2),)
            await agent.hello()
            other = FakeAgent(agent.bus, "node-2", "node2")
            await other.hello()
            said = DeviceEvent(NOBODY, "GPU-2", "failed", "nvml", "xid_79")

            await other.bus.publish(subjects.devices("node-2"), encode(said))
            await until(lambda: weaver.dropped["foreign_device"] == 1)
            assert killed(agent) == []
            await agent.bus.publish(subjects.devices("node-1"), encode(said))
            await until(lambda: len(killed(agent)) == 2)

            assert killed(agent) == [("job-1", 2), ("job-1", 3)]

    asyncio.run(scenario())

    device = rows(tmp_path, "SELECT state, source, reason FROM devices WHERE uuid = 'GPU-2'")
    assert device == [("failed", "nvml", "xid_79")]


def test_a_policy_that_makes_no_sense_is_the_usual_one() -> None:
    odd: list[Any] = [None, [], {"policy": 3}, {"policy": {"recovery": "pray", "min_groups": "x"}}]

    assert {failure_policy(facts) for facts in odd} == {failure_policy({})}
