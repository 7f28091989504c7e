"""Jobs wait, are placed and started once, and give their place back; all of it is stored first."""

import asyncio
import threading
from pathlib import Path

import pytest

from torchloom.rules.devices import DeviceState
from torchloom.weaver.events import AgentDown
from torchloom.weaver.jobs.launch import Spot
from torchloom.weaver.jobs.submissions import KeyReused, Unschedulable

from ...harness.fake_agents import until
from ...harness.queue_world import Plane, World, stored

STATES = "SELECT name, state, reason FROM jobs ORDER BY created_at, name"


def test_a_submitted_job_is_stored_placed_and_started_with_its_own_id(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> str:
        plane = Plane(tmp_path, world)
        plane.node("node1", 4)
        plane.coordinator.start()
        job = await plane.submit("train", 2, key="k", args=["--lr", "1"])
        await plane.settled()
        await plane.close()
        return job

    job = asyncio.run(scenario())

    assert stored(tmp_path, STATES) == [("train", "RUNNING", "placed")]
    assert stored(tmp_path, "SELECT * FROM placements") == [(job, "node1", 2, 2, 0, "[]")]
    found = stored(tmp_path, "SELECT job, number, owner, key FROM submissions")
    assert found == [(job, 1, "alice", "k")]
    kinds = [kind for (kind,) in stored(tmp_path, "SELECT kind FROM events WHERE job != ''")]
    assert kinds == ["submitted", "job_state"]
    assert world.orders[job].spots == (Spot("node1", 2),)
    assert world.orders[job].spec["args"] == ["--lr", "1"]


def test_who_finds_no_room_waits_and_goes_when_another_has_ended(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> list[str]:
        plane = Plane(tmp_path, world)
        plane.node("node1", 2)
        plane.coordinator.start()
        first, second = await plane.submit("first", 2), await plane.submit("second", 1)
        await plane.settled()
        assert list(world.starts) == [first]
        assert plane.coordinator.queue.why() == {
            second: "waits for room: needs 1 workers, 0 would fit now"
        }
        plane.end(first)
        await plane.settled()
        await plane.close()
        return [first, second]

    first, second = asyncio.run(scenario())

    assert list(world.starts) == [first, second]
    assert stored(tmp_path, "SELECT job FROM placements") == [(second,)]


def test_what_can_never_run_is_refused_and_nothing_of_it_is_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        plane = Plane(tmp_path, World())
        plane.node("node1", 4)
        plane.coordinator.start()
        with pytest.raises(Unschedulable, match="needs 8 workers, the cluster has 4"):
            await plane.submit("big", 8)
        await plane.close()

    asyncio.run(scenario())

    assert stored(tmp_path, "SELECT id FROM jobs") == []
    assert stored(tmp_path, "SELECT job FROM submissions") == []


def test_the_same_key_submits_once_and_another_job_under_it_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        plane = Plane(tmp_path, World())
        plane.node("node1", 8)
        plane.coordinator.start()
        first = await plane.submit("one", key="k")
        assert await plane.submit("one", key="k") == first
        assert await plane.submit("one", key="k", owner="bob") != first
        together = await asyncio.gather(plane.submit("two", key="l"), plane.submit("two", key="l"))
        assert len(set(together)) == 1
        with pytest.raises(KeyReused, match=f"used for job {first}"):
            await plane.submit("other", key="k")
        await plane.close()

    asyncio.run(scenario())

    assert len(stored(tmp_path, "SELECT id FROM jobs")) == 3


def test_a_cancelled_job_leaves_the_queue_and_a_running_one_is_stopped(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> None:
        plane = Plane(tmp_path, world)
        plane.node("node1", 1)
        plane.coordinator.start()
        runs, waits = await plane.submit("runs"), await plane.submit("waits")
        await plane.settled()
        for name in (waits, runs):
            job = plane.jobs.get(name)
            assert job is not None
            await plane.coordinator.cancel(job, "bob", "no more")
        assert runs not in world.running
        assert plane.coordinator.queue.why() == {}
        await plane.close()

    asyncio.run(scenario())

    assert ("waits", "CANCELLED", "no more") in stored(tmp_path, STATES)
    said = stored(tmp_path, "SELECT author, reason FROM events WHERE kind = 'cancelled'")
    assert said == [("bob", "no more")] * 2


def test_a_job_that_is_cancelled_before_its_run_is_made_never_starts(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> None:
        plane = Plane(tmp_path, world)
        plane.node("node1", 1)
        plane.coordinator.start()
        job = plane.jobs.get(await plane.submit("runs"))
        assert job is not None
        await plane.coordinator.cancel(job, "bob", "")
        await plane.settled()
        await plane.close()

    asyncio.run(scenario())

    assert stored(tmp_path, STATES) == [("runs", "CANCELLED", "cancelled_by_user")]
    assert not world.running


async def cancelled_while_it_starts(plane: Plane, world: World) -> str:
    """Submit a job and cancel it in the middle of its start; return its id."""
    name = await plane.submit("runs")
    await until(lambda: world.slow_seen)
    job = plane.jobs.get(name)
    assert job is not None
    await plane.coordinator.cancel(job, "bob", "no more")
    world.slow["runs"].set()
    await plane.settled()
    return name


def test_a_job_that_is_cancelled_while_it_starts_is_ended_then(tmp_path: Path) -> None:
    world = World()
    world.slow["runs"] = threading.Event()

    async def scenario() -> str:
        plane = Plane(tmp_path, world)
        plane.node("node1", 1)
        plane.coordinator.start()
        name = await cancelled_while_it_starts(plane, world)
        await plane.close()
        return name

    job = asyncio.run(scenario())

    assert (dict(world.starts), world.running) == ({job: 1}, set())


def test_a_run_that_cannot_be_ended_does_not_end_the_weaver(tmp_path: Path) -> None:
    world = World()
    world.is_stubborn = True
    world.slow["runs"] = threading.Event()

    async def scenario() -> None:
        plane = Plane(tmp_path, world)
        plane.node("node1", 1)
        plane.coordinator.start()
        await cancelled_while_it_starts(plane, world)
        assert (plane.tasks.error, len(world.running)) == (None, 1)
        await plane.close()

    asyncio.run(scenario())


def test_a_start_that_fails_ends_the_job_with_the_engines_words(tmp_path: Path) -> None:
    world = World()
    world.breaks["bad"] = "no file 'train.py'"

    async def scenario() -> None:
        plane = Plane(tmp_path, world)
        plane.node("node1", 1)
        plane.coordinator.start()
        await plane.submit("bad")
        good = await plane.submit("good")
        await plane.settled()
        assert list(world.starts) == [good]
        await plane.close()

    asyncio.run(scenario())

    assert stored(tmp_path, STATES) == [
        ("bad", "FAILED", "start_failed: no file 'train.py'"),
        ("good", "RUNNING", "placed"),
    ]


def test_a_gpu_is_given_once_and_one_that_is_not_well_to_nobody(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> list[str]:
        plane = Plane(tmp_path, world)
        plane.node("node1", 8, "GPU-1", "GPU-2", "GPU-3")
        plane.coordinator.start()
        plane.devices.mark("GPU-2", DeviceState.FAILED, "test", "xid")
        plane.coordinator.nodes.update()
        jobs = [await plane.submit(resources={"gpus_per_worker": 1}) for _ in range(3)]
        await plane.settled()
        await plane.close()
        return jobs

    jobs = asyncio.run(scenario())

    given = [world.orders[job].spots[0].gpus for job in jobs if job in world.orders]
    assert given == [("GPU-1",), ("GPU-3",)]


def test_a_quota_holds_an_owner_back_and_is_there_after_a_restart(tmp_path: Path) -> None:
    world = World()

    async def first() -> str:
        plane = Plane(tmp_path, world)
        plane.node("node1", 8)
        plane.coordinator.start()
        plane.coordinator.set_quota("alice", 2, "root")
        await plane.submit("one", 2)
        waits = await plane.submit("two", 1)
        await plane.submit("other", 1, owner="bob")
        await plane.settled()
        await plane.close()
        return waits

    async def second(waits: str) -> None:
        plane = Plane(tmp_path, world)
        plane.node("node1", 8)
        plane.coordinator.start()
        assert plane.coordinator.queue.why() == {
            waits: "waits for a quota: alice has 2 of 2 workers"
        }
        plane.coordinator.set_quota("alice", None, "root")
        await plane.settled()
        await plane.close()

    asyncio.run(second(asyncio.run(first())))

    assert len(world.starts) == 3
    noted = stored(tmp_path, "SELECT author, facts FROM events WHERE kind = 'quota_set'")
    assert noted == [
        ("root", '{"owner":"alice","workers":2}'),
        ("root", '{"owner":"alice","workers":null}'),
    ]


def test_a_job_spreads_over_nodes_and_keeps_its_share_of_one_that_is_lost(tmp_path: Path) -> None:
    world = World()

    async def scenario() -> str:
        plane = Plane(tmp_path, world)
        plane.node("node1", 2)
        plane.node("node2", 1)
        plane.coordinator.start()
        job = await plane.submit("wide", 3)
        await plane.settled()
        plane.coordinator.nodes.on_agent_down(AgentDown("node2"))
        waits = await plane.submit("next", 1)
        assert plane.coordinator.queue.why()[waits].startswith("waits for room")
        plane.end(job)
        await plane.settled()
        assert world.orders[waits].spots == (Spot("node1", 1),)
        await plane.close()
        return job

    job = asyncio.run(scenario())

    assert world.orders[job].spots == (Spot("node1", 2), Spot("node2", 1))


def test_a_run_that_somebody_removed_is_not_started_again(tmp_path: Path) -> None:
    world = World()

    async def scenario(is_first: bool) -> None:
        plane = Plane(tmp_path, world)
        plane.node("node1", 1)
        if is_first:
            plane.coordinator.start()
            await plane.submit("one")
        else:
            world.starts.clear()
            plane.coordinator.start()
        await plane.settled()
        await plane.close()

    asyncio.run(scenario(True))
    asyncio.run(scenario(False))

    assert stored(tmp_path, STATES) == [("one", "FAILED", "run_removed")]
    assert not world.starts
