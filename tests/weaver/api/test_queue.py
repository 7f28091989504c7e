"""What the door answers about the queue: jobs, who waits and why, nodes, quotas; its refusals."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.messages.plane import NO_RANK, VERSION, Device, Head, Hello
from torchloom.specs.states import JobState
from torchloom.weaver.api.router import Router
from torchloom.weaver.events import AgentDown, NodeReported
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import DatabasePlace, open_store

from ...harness.fake_agents import until
from ...harness.fresh_databases import fresh
from ...harness.queue_world import World, stored

SPEC = {"name": "train", "script": "train.py", "resources": {"workers": 2}}


class Door:
    """Ask a weaver as a door does."""

    def __init__(self, weaver: Weaver, world: World) -> None:
        self.weaver = weaver
        self.world = world
        self._answering = Router(weaver)

    async def said(self, name: str, **facts: Any) -> dict[str, Any]:
        return await self._answering.answer({"ask": name, "version": 1, **facts})

    async def ask(self, name: str, **facts: Any) -> Any:
        said = await self.said(name, **facts)
        assert "ok" in said, said
        return said["ok"]

    def node(self, name: str, cpus: int, *devices: Device) -> None:
        head = Head(VERSION, "", 0, NO_RANK, "")
        said = Hello(head, name, f"{name}.host", "boot", 1, 0, devices, (), cpus, 4096)
        self.weaver.roster.greet(said)
        self.weaver.coordinator.nodes.on_node_reported(NodeReported(said))


@contextlib.asynccontextmanager
async def door_of(where: Path | DatabasePlace, world: World | None = None) -> AsyncIterator[Door]:
    place = where if isinstance(where, DatabasePlace) else fresh(where)
    store, bus, world = open_store(place), MemoryBus(Exchange()), world or World()
    weaver = Weaver(store, bus, world)
    await weaver.start()
    weaver.coordinator.start()
    yield Door(weaver, world)
    await weaver.stop()
    await bus.close()
    store.close()


def at_the_door(folder: Path, scenario: Callable[[Door], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with door_of(folder) as door:
            await scenario(door)

    asyncio.run(run())


def test_a_submitted_job_is_answered_with_its_shape_and_shown_with_its_spec(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        said = await door.ask("submit", spec=SPEC, owner="alice", author="ann", cwd="/work")
        again = await door.ask("submit", spec=SPEC, owner="alice", author="ann")

        words = ("name", "owner", "state", "world_size", "created")
        assert [said[name] for name in words] == ["train", "alice", "RUNNING", 2, True]
        assert said["handle"] == f"local://torchx/{said['id']}"
        shown = await door.ask("job", job=again["id"])
        assert (shown["state"], shown["spec"]) == ("QUEUED", SPEC)
        assert shown["reason"] == "waits for room: needs 2 workers, 0 would fit now"
        await until(lambda: said["id"] in door.world.orders)
        assert door.world.orders[said["id"]].cwd == "/work"

    at_the_door(tmp_path, scenario)

    assert stored(tmp_path, "SELECT author FROM submissions") == [("ann",), ("ann",)]


@pytest.mark.parametrize(
    ("facts", "code", "field"),
    [
        ({"spec": None}, "bad_spec", "job"),
        ({"spec": {"name": "x"}}, "bad_spec", ""),
        ({"spec": {**SPEC, "resources": {"workers": 0}}}, "bad_spec", "resources.workers"),
        ({"spec": {**SPEC, "scheduler": "slurm"}}, "bad_spec", "scheduler"),
        ({"spec": {**SPEC, "resources": {"workers": 9}}}, "unschedulable", None),
        ({"spec": SPEC, "key": "k" * 201}, "bad_question", None),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field_and_nothing_is_stored(
    tmp_path: Path, facts: dict[str, Any], code: str, field: str | None
) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)

        said = await door.said("submit", owner="alice", **facts)

        assert (said["code"], said.get("field"), said["exit_code"]) == (code, field, 2)
        assert bool(said.get("remedy")) == (field is not None)

    at_the_door(tmp_path, scenario)

    assert stored(tmp_path, "SELECT id FROM jobs") == []


def test_the_queue_is_told_in_its_order_with_what_each_needs_and_waits_for(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        ids = [
            (await door.ask("submit", spec={**SPEC, "priority": each}, owner="alice"))["id"]
            for each in (0, 0, 5)
        ]

        need = {"workers": 2, "cpus": 1, "gpus": 0, "memory_mb": 0}
        room = "waits for room: needs 2 workers, 0 would fit now"
        shared = {"owner": "alice", "need": need}
        assert await door.ask("queue") == [
            {**shared, "job": ids[2], "priority": 5, "position": 1, "why": room},
            {
                **shared,
                "job": ids[1],
                "priority": 0,
                "position": 2,
                "why": f"waits behind {ids[2]}",
            },
        ]

    at_the_door(tmp_path, scenario)


def test_the_cluster_shows_what_is_free_and_who_has_the_rest_of_lost_nodes_too(
    tmp_path: Path,
) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 4, Device("GPU-1", "cuda", 0), Device("n1/cpu/0", "cpu", 0))
        door.node("n2", 2)
        one = (await door.ask("submit", spec=SPEC, owner="alice"))["id"]
        nodes = (await door.ask("cluster"))["nodes"]
        door.weaver.coordinator.nodes.on_agent_down(AgentDown("n2"))
        left = (await door.ask("cluster"))["nodes"]

        shape = {"id": "n1", "host": "n1.host", "state": "up", "cpus": 4, "memory_mb": 4096}
        free = {"cpus": 4, "memory_mb": 4096, "gpus": ["GPU-1"]}
        assert nodes[0] == {**shape, "gpus": ["GPU-1"], "free": free, "jobs": []}
        assert (nodes[1]["free"]["cpus"], nodes[1]["jobs"]) == (0, [one])
        assert [(node["id"], node["state"], node["jobs"]) for node in left] == [
            ("n1", "up", []),
            ("n2", "lost", [one]),
        ]

    at_the_door(tmp_path, scenario)


def test_quotas_are_set_shown_and_taken_away_and_noted_with_their_author(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 8)
        await door.ask("submit", spec=SPEC, owner="alice")
        set_ = await door.ask("quota", owner="alice", workers=3, author="root")
        waits = await door.ask("submit", spec=SPEC, owner="alice")
        shown = await door.ask("quotas")
        await door.ask("quota", owner="alice", workers=None, author="root")

        assert set_ == {"owner": "alice", "workers": 3, "used": 2}
        assert shown == [set_]
        assert waits["state"] == "QUEUED"
        assert await door.ask("quotas") == []
        assert await door.ask("queue") == []
        assert (await door.said("quota", owner="a", workers=-1))["code"] == "bad_question"

    at_the_door(tmp_path, scenario)

    noted = stored(tmp_path, "SELECT author FROM events WHERE kind = 'quota_set'")
    assert noted == [("root",), ("root",)]


def test_a_job_is_cancelled_once_and_one_that_is_over_not_again(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        await door.ask("submit", spec=SPEC, owner="alice")
        job = (await door.ask("submit", spec=SPEC, owner="alice"))["id"]

        done = await door.ask("cancel", job=job, author="bob", reason="a mistake")
        again = await door.said("cancel", job=job, author="bob")

        assert (done["state"], done["reason"]) == ("CANCELLED", "a mistake")
        assert again["code"] == "job_over"
        assert await door.ask("queue") == []

    at_the_door(tmp_path, scenario)


def test_a_batch_is_stored_in_one_transaction_and_answered_item_by_item(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        items = [
            {"spec": SPEC, "key": "a"},
            {"spec": {**SPEC, "resources": {"workers": 0}}, "key": "b"},
            {"spec": {**SPEC, "resources": {"workers": 99}}, "key": "c"},
            {"spec": {**SPEC, "name": "other"}, "key": "a"},
            "no item",
            {"spec": SPEC, "key": "d", "cwd": "/work"},
        ]

        said = await door.ask("submit_many", items=items, owner="alice")
        again = await door.ask("submit_many", items=items[:1], owner="alice")

        codes = [None, "bad_spec", "unschedulable", "key_reused", "bad_spec", None]
        assert [one.get("code") for one in said] == codes
        assert [one["ok"]["state"] for one in said if "ok" in one] == ["RUNNING", "QUEUED"]
        assert (again[0]["ok"]["id"], again[0]["ok"]["created"]) == (said[0]["ok"]["id"], False)
        rows = stored(tmp_path, "SELECT job, owner, key, cwd FROM submissions ORDER BY number")
        first, last = said[0]["ok"]["id"], said[5]["ok"]["id"]
        assert rows == [(first, "alice", "a", ""), (last, "alice", "d", "/work")]
        refused = await door.said("submit_many", items=[{"spec": SPEC}] * 257)
        assert (refused["code"], "1 to 256" in refused["error"]) == ("bad_question", True)

    at_the_door(tmp_path, scenario)


def test_all_that_wait_are_cancelled_and_none_of_them_is_started_meanwhile(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 4)
        spec = [{**SPEC, "resources": {"workers": n}} for n in (3, 4, 1, 1)]
        ids = [
            one["ok"]["id"]
            for one in await door.ask("submit_many", items=[{"spec": each} for each in spec])
        ]
        await until(lambda: ids[0] in door.world.starts)

        done = await door.ask("cancel_many", states=["QUEUED"], author="bob", reason="wrong lr")

        assert {one["job"]: one["ok"]["state"] for one in done["items"]} == dict.fromkeys(
            ids[1:], "CANCELLED"
        )
        assert done["left"] == 0
        assert dict(door.world.starts) == {ids[0]: 1}
        rows = stored(tmp_path, "SELECT id, state, started_at, reason FROM jobs WHERE reason != ''")
        waited = {row[0]: row[1:] for row in rows if row[0] in ids[1:]}
        assert waited == dict.fromkeys(ids[1:], ("CANCELLED", None, "wrong lr"))
        noted = "SELECT job, author FROM events WHERE kind = 'cancelled' ORDER BY job"
        assert stored(tmp_path, noted) == [(job, "bob") for job in sorted(ids[1:])]

    at_the_door(tmp_path, scenario)


def test_jobs_are_cancelled_by_id_and_each_that_is_not_says_why(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        ids = [(await door.ask("submit", spec=SPEC, owner="alice"))["id"] for _ in range(3)]
        await door.ask("cancel", job=ids[2])

        done = await door.ask("cancel_many", jobs=[ids[1], ids[2], "nobody", ids[1]], owner="alice")
        ended = await door.said("cancel_many", states=["COMPLETED"])
        neither = await door.said("cancel_many")

        found = [(one["job"], one.get("code", "")) for one in done["items"]]
        assert found == [(ids[1], ""), (ids[2], "job_over"), ("nobody", "not_found")]
        assert [ended["code"], neither["code"]] == ["bad_question"] * 2
        assert await door.ask("queue") == []

    at_the_door(tmp_path, scenario)


def test_a_job_that_never_ran_has_its_summary_like_any_other(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        items = [{"spec": SPEC}] * 4
        ids = [one["ok"]["id"] for one in await door.ask("submit_many", items=items)]

        await door.ask("cancel_many", states=["QUEUED"])

        def summaries() -> list[Any]:
            return [door.weaver.jobs.get(job).facts.get("summary") for job in ids[1:]]  # type: ignore[union-attr]

        await until(lambda: all(summaries()))
        nothing = {"steps": None, "samples": None, "wall_seconds": None, "restarts": 0}
        assert summaries() == [{**nothing, "metrics": {}, "faults": []}] * 3

    at_the_door(tmp_path, scenario)


def test_the_next_weaver_has_the_queue_of_the_last_one_on_either_database(
    place: DatabasePlace,
) -> None:
    world = World()

    async def scenario() -> None:
        async with door_of(place, world) as door:
            door.node("n1", 2)
            await door.ask("quota", owner="bob", workers=1, author="root")
            ids = [
                (await door.ask("submit", spec=SPEC, owner="alice", key=f"k{n}"))["id"]
                for n in range(3)
            ]
            await until(lambda: ids[0] in world.starts)
            before = await door.ask("queue"), await door.ask("quotas")
        async with door_of(place, world) as door:
            door.node("n1", 2)
            again = await door.ask("submit", spec=SPEC, owner="alice", key="k1")

            assert (await door.ask("queue"), await door.ask("quotas")) == before
            assert (again["id"], again["created"]) == (ids[1], False)
            door.weaver.jobs.end(ids[0], JobState.COMPLETED, "ranks_ended")
            await until(lambda: ids[1] in world.starts)
            assert dict(world.starts) == dict.fromkeys(ids[:2], 1)

    asyncio.run(scenario())


def test_nothing_can_be_submitted_over_the_bus(tmp_path: Path) -> None:
    async def scenario(door: Door) -> None:
        names = Router(door.weaver).on_the_bus

        changing = {"submit", "submit_many", "cancel", "cancel_many", "quota"}
        assert changing.isdisjoint(names)
        assert {"queue", "cluster", "quotas"} <= set(names)

    at_the_door(tmp_path, scenario)


def test_jobs_that_have_no_run_are_listed_with_those_that_only_the_plane_knows(
    tmp_path: Path,
) -> None:
    async def scenario(door: Door) -> None:
        door.node("n1", 2)
        ids = [(await door.ask("submit", spec=SPEC, owner="alice"))["id"] for _ in range(2)]

        listed = await door.ask("jobs", strangers=True)
        meant = {
            name: [job["id"] for job in await door.ask("jobs", strangers=True, named=name)]
            for name in ("train", ids[0], "another")
        }

        assert {job["id"]: job["state"] for job in listed} == dict(
            zip(ids, ("RUNNING", "QUEUED"), strict=True)
        )
        assert meant == {"train": ids[::-1], ids[0]: ids[:1], "another": []}

    at_the_door(tmp_path, scenario)


def test_a_resume_waits_for_nodes_that_are_about_to_register_as_a_submit_does(
    tmp_path: Path,
) -> None:
    async def first(door: Door) -> None:
        door.node("n1", 2)
        job = (await door.ask("submit", spec=SPEC, owner="alice", author="ann"))["id"]
        await door.ask("cancel", job=job, author="ann")
        door.weaver.jobs.end(job, JobState.CANCELLED, "over")

    async def second(door: Door) -> None:
        (job,) = (row.id for row in door.weaver.jobs.all())
        asked = {"job": job, "id": "c-1", "author": "ann"}
        gathered = door.weaver.coordinator.nodes.gathered
        answer = asyncio.create_task(door.ask("resume", **asked))
        await until(lambda: answer.done() or gathered._waiters)  # type: ignore[attr-defined]
        door.node("n1", 2)
        gathered.set()

        once = await answer
        again = await door.ask("resume", **asked)

        words = ("id", "before", "payload")
        assert [once[word] for word in words] == ["c-1", "CANCELLED", {"attempt": 2}]
        assert [again[word] for word in words] == [once[word] for word in words]
        assert (await door.said("resume", **{**asked, "id": "c-2"}))["code"] == "not_resumable"

    at_the_door(tmp_path, first)
    at_the_door(tmp_path, second)

    kinds = stored(tmp_path, "SELECT COUNT(*) FROM events WHERE kind = 'resume'")
    assert kinds == [(1,)]
