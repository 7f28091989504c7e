"""The local door answers this user's questions; what does not fit is refused in words."""

import asyncio
import json
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus import subjects
from torchloom.bus.memory import Exchange
from torchloom.messages.plane import Event, Goodbye, Knob, Metrics, Progress
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import LR, FakeAgent, crowd, job_event, rows, until, weaver_at
from ...harness.home import TIMEOUT

HEADER = struct.Struct("!IH")


class Caller:
    """Asks as any program could: a socket, a length, JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> "Caller":
        self._reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def say(self, **facts: Any) -> None:
        text = json.dumps({"version": 1, **facts}).encode()
        self._writer.write(HEADER.pack(len(text), 0) + text)
        await self._writer.drain()

    async def hear(self) -> dict[str, Any]:
        length, _ = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        heard: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        return heard

    async def ask(self, name: str, **facts: Any) -> Any:
        await self.say(ask=name, **facts)
        answer = await self.hear()
        return answer.get("ok", answer)


async def with_job(exchange: Exchange, ranks: int = 2, **words: Any) -> FakeAgent:
    agent, _ = await crowd(exchange, ranks, **words)
    await agent.act(job_event("job", name="gpt", scheduler="local", handle="local://x/job-1"))
    await agent.hello()
    return agent


def scenario(folder: Path, act: Any) -> None:
    """Run an act with a weaver, an exchange and a caller at the door."""

    async def run() -> None:
        exchange = Exchange()
        door = folder / "door.sock"
        async with weaver_at(folder / "db", exchange, door) as weaver, Caller(door) as caller:
            await asyncio.wait_for(act(exchange, weaver, caller), TIMEOUT)

    asyncio.run(run())


def test_only_this_user_can_reach_the_door(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        mode = (tmp_path / "door.sock").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600

    scenario(tmp_path, act)


def test_jobs_and_ranks_have_the_shape_that_every_door_shows(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        agent = await with_job(exchange)
        heads = [rank.head for rank in agent.ranks.values()]
        beats = [Progress(head, 10 + n, 1, 0.1, 0.01) for n, head in enumerate(heads)]
        await agent.beat(*beats)
        await until(lambda: weaver.heartbeats.present["node-1"].progress)

        (job,) = await caller.ask("jobs", active=True)
        one = await caller.ask("job", job="gpt")
        ranks = await caller.ask("ranks", job="@")

        assert set(job) == {
            *("id", "name", "state", "reason", "step", "run_id", "attempt", "generation"),
            *("handle", "scheduler", "owner", "created_at", "started_at", "ended_at"),
            *("job_id", "status", "world_size", "warning"),
        }
        assert job["world_size"] == 2
        assert (job["id"], job["name"], job["state"], job["step"]) == (
            "job-1",
            "gpt",
            "RUNNING",
            10,
        )
        assert job == {name: one[name] for name in job}
        assert one["ranks"] == ranks
        known = ("rank", "local_rank", "replica", "node", "pid", "state", "step", "generation")
        assert [[rank[name] for name in known] for rank in ranks] == [
            [0, 0, "trainer/0", "node1", 1000, "up", 10, 0],
            [1, 1, "trainer/1", "node1", 1001, "up", 11, 0],
        ]
        assert ranks[0]["device_uuids"] == ["node1/cpu/0"]

    scenario(tmp_path, act)


def test_a_job_is_found_by_id_beginning_name_handle_or_because_it_is_the_only_one(
    tmp_path: Path,
) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange)

        for name in ("job-1", "job", "gpt", "local://x/job-1", "@", ""):
            assert (await caller.ask("job", job=name))["id"] == "job-1"

        await with_job(exchange, job="job-22")
        assert (await caller.ask("job", job="job"))["code"] == "ambiguous"
        assert (await caller.ask("job"))["code"] == "no_job"
        answer = await caller.ask("job", job="gqt")
        assert answer == {
            "error": "no job 'gqt'; did you mean 'gpt'?",
            "code": "not_found",
            "exit_code": 2,
        }

    scenario(tmp_path, act)


def test_a_knob_is_set_and_the_answer_says_where_and_from_what(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange)

        done = await caller.ask("set", job="gpt", values={"lr": 0.03}, author="ann", reason="x")

        known = ("kind", "payload", "state", "effective_step", "before", "after", "author")
        assert [done[name] for name in known] == [
            *("knob", {"name": "lr", "value": 0.03, "hold": False}),
            *("applied", 2, 0.1, 0.03, "ann"),
        ]
        assert [(ack["rank"], ack["step"]) for ack in done["ranks"]] == [(0, 2), (1, 2)]
        assert await caller.ask("audit", job="gpt") == [done]
        (knob,) = await caller.ask("knobs", job="gpt")
        assert (knob["name"], knob["value"], knob["type"]) == ("lr", 0.03, "float")
        assert (knob["low"], knob["high"], knob["ranks"]) == (0.0, 1.0, [0, 1])

    scenario(tmp_path, act)


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"lrr": 0.1}, "not_found", "no knob 'lrr'; did you mean 'lr'?; known: lr, n, on"),
        ({"lr": "fast"}, "bad_value", "lr takes a finite number, not 'fast'"),
        ({"lr": True}, "bad_value", "lr takes a finite number, not True"),
        ({"lr": float("nan")}, "bad_value", "lr takes a finite number, not nan"),
        ({"lr": 3}, "bad_value", "lr must be at most 1, not 3"),
        ({"lr": -1}, "bad_value", "lr must be at least 0, not -1"),
        ({"n": 1.5}, "bad_value", "n takes a whole number, not 1.5"),
        ({"on": 1}, "bad_value", "on takes true or false, not 1"),
        ({}, "bad_value", "nothing to set; write NAME=VALUE"),
        ("lr", "bad_question", "values must map names to values, not 'lr'"),
    ],
)
def test_what_a_knob_does_not_take_is_refused_in_words(
    tmp_path: Path, values: Any, code: str, words: str
) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        knobs = (LR, Knob("n", 3, "int"), Knob("on", False, "bool"))
        await with_job(exchange, knobs=knobs)

        answer = await caller.ask("set", job="gpt", values=values)

        assert answer == {"error": words, "code": code, "exit_code": 2}
        assert rows(tmp_path / "db", "SELECT * FROM commands") == []

    scenario(tmp_path, act)


def test_what_cannot_be_asked_is_refused_and_the_door_stays_open(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        assert (await caller.ask("jbos"))["error"] == "no question 'jbos'; did you mean 'jobs'?"
        assert (await caller.ask("jobs", version=2))["code"] == "bad_question"
        assert (await caller.ask("jobs", limit="x"))["code"] == "bad_question"
        assert (await caller.ask("job", job=[1]))["code"] == "bad_question"
        assert (await caller.ask("device_event", device="d", state="odd"))["code"] == "bad_question"

        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(tmp_path / "door.sock"))
            rude.sendall(os.urandom(64))
        assert await caller.ask("jobs") == []

    scenario(tmp_path, act)


def test_an_id_belongs_to_one_job(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange)
        await with_job(exchange, job="job-2")

        first = await caller.ask("set", job="job-1", values={"lr": 0.5}, id="mine")
        again = await caller.ask("set", job="job-1", values={"lr": 0.5}, id="mine")
        other = await caller.ask("set", job="job-2", values={"lr": 0.7}, id="mine")

        assert again == first
        assert other["error"] == "a command of another job has the id 'mine'; choose another"
        assert await caller.ask("audit", job="job-2") == []

    scenario(tmp_path, act)


def test_a_command_without_an_outcome_is_answered_as_it_stands_when_time_is_up(
    tmp_path: Path,
) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        agent = await with_job(exchange)
        for rank in agent.ranks.values():
            rank.is_deaf = lambda message: True

        answer = await caller.ask("pause", job="gpt", wait=0.05, id="p-1")

        assert (answer["id"], answer["state"], answer["kind"]) == ("p-1", "preparing", "pause")

    scenario(tmp_path, act)


def test_pause_resume_and_stop_reach_the_ranks(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange)

        done = []
        for kind in ("pause", "resume"):
            command = await caller.ask(kind, job="gpt", author="ann")
            job = await caller.ask("job", job="gpt")
            done.append((command["state"], job["state"], job["reason"]))
        refused = await caller.ask("stop", job="gpt", at=0)
        stopped = await caller.ask("stop", job="gpt")

        assert done == [
            ("applied", "PAUSED", "paused_by_ann"),
            ("applied", "RUNNING", "resumed_by_ann"),
        ]
        assert refused["code"] == "refused"
        assert "step 0 is past" in refused["error"]
        assert stopped["state"] == "applied"
        await until(lambda: not list(weaver.roster.living()))
        assert len(weaver.jobs.active()) == 1  # its launch process has not told its end yet

    scenario(tmp_path, act)


def test_a_job_that_has_ended_cannot_be_changed(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        agent = await with_job(exchange)
        await agent.act(job_event("job_ended", state="COMPLETED"))
        await until(lambda: not weaver.jobs.active())

        answer = await caller.ask("set", job="gpt", values={"lr": 0.1})

        assert answer["code"] == "job_over"
        assert await caller.ask("jobs", active=True) == []
        (job,) = await caller.ask("jobs")
        assert (job["state"], job["reason"]) == ("COMPLETED", "ranks_ended")

    scenario(tmp_path, act)


def test_a_job_that_has_ended_keeps_how_far_it_came_and_how_many_it_was(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        agent = await with_job(exchange)
        first, second = (rank.head for rank in agent.ranks.values())
        await agent.beat(Progress(first, 10, 1, 0.1, 0.01), Progress(second, 11, 1, 0.1, 0.01))
        await until(lambda: weaver.heartbeats.present["node-1"].progress)
        await agent.act(Goodbye(first, 14))

        await agent.act(job_event("job_ended", state="FAILED", reason="x"))
        await until(lambda: not weaver.jobs.active())

        (job,) = await caller.ask("jobs", ids=["job-1", "other"])
        assert (job["state"], job["step"], job["world_size"]) == ("FAILED", 11, 2)
        assert await caller.ask("jobs", ids=["other"]) == []
        assert (await caller.ask("jobs", ids="job-1"))["code"] == "bad_question"

    scenario(tmp_path, act)

    assert rows(tmp_path / "db", "SELECT step FROM jobs") == [(11,)]


def test_a_device_that_nobody_knows_is_refused_unless_it_is_made_known(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange)
        facts = {"state": "failed", "reason": "x"}

        refused = await caller.ask("device_event", device="node1/cpu/7", **facts)
        several = await caller.ask("device_event", device="node1", **facts)
        made = await caller.ask("device_event", device="GPU-1", new=True, **facts)
        begun = await caller.ask("device_event", device="GPU", **facts)

        assert "no device 'node1/cpu/7'; did you mean 'node1/cpu/" in refused["error"]
        assert "loom devices register" in refused["error"]
        assert several["code"] == "ambiguous"
        assert (made["uuid"], begun["uuid"]) == ("GPU-1", "GPU-1")

    scenario(tmp_path, act)


def test_metrics_and_events_are_read_from_where_one_was(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        agent = await with_job(exchange)
        head = next(iter(agent.ranks.values())).head
        curve = Metrics(head, ("loss",), tuple((n, float(n), n / 10) for n in range(5)))
        await agent.send(head, 1, curve, Event(head, "first_step", 3, 3.0, {"x": 1}))
        await agent.stored(head, 2)

        found = await caller.ask("metrics", job="gpt", metric="loss", after=2)
        first = await caller.ask("events", job="gpt")
        again = await caller.ask("events", job="gpt", after=first["next"])

        assert found == {
            "job": "job-1",
            "names": ["loss"],
            "series": [
                {"name": "loss", "role": "", "rank": 0, "points": [[3, 3.0, 0.3], [4, 4.0, 0.4]]}
            ],
        }
        kinds = [item["kind"] for item in first["items"]]
        assert kinds == ["first_step", "job_started", "rank_up", "rank_up"]
        assert again == {"items": [], "next": first["next"]}

    scenario(tmp_path, act)


def test_a_watcher_is_sent_what_happens_and_reads_on_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        exchange = Exchange()
        where = (tmp_path / "db", exchange, tmp_path / "door.sock")
        async with weaver_at(*where), Caller(tmp_path / "door.sock") as watcher:
            await watcher.say(ask="watch", after={"weaver": 0, "ranks": 0})
            agent = await with_job(exchange, ranks=1)
            heard = [await watcher.hear() for _ in range(3)]
            assert [each["event"]["kind"] for each in heard] == [
                "job_started",
                "agent_up",
                "rank_up",
            ]

        async with weaver_at(*where) as weaver, Caller(tmp_path / "door.sock") as watcher:
            await agent.act(job_event("job_ended", state="FAILED", reason="x"))
            await until(lambda: not weaver.jobs.active())
            await watcher.say(ask="watch", job="job-1", after=heard[-1]["next"])
            kinds = [(await watcher.hear())["event"]["kind"] for _ in range(2)]
            assert kinds == ["job_state", "rank_gone"]

    async def soon() -> None:
        await asyncio.wait_for(run(), TIMEOUT)

    asyncio.run(soon())


def test_the_same_questions_are_answered_over_the_bus(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        agent = await with_job(exchange)

        async def ask(name: str, data: bytes) -> Any:
            return json.loads(await agent.bus.request(subjects.door(name), data, TIMEOUT))

        assert (await ask("jobs", b""))["ok"] == await caller.ask("jobs")
        done = await ask("set", b'{"job": "gpt", "values": {"lr": 0.5}}')
        assert done["ok"]["state"] == "applied"
        assert (await ask("set", b'{"values": {"x": 1}}'))["code"] == "not_found"
        assert (await ask("jobs", b"no JSON"))["code"] == "bad_question"
        assert (await ask("jobs", b"[" * 100_000))["code"] == "bad_question"

    scenario(tmp_path, act)


def test_status_says_how_the_weaver_is(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange)

        status = await caller.ask("status")

        known = ("epoch", "pid", "jobs", "agents", "ranks", "connected", "dropped")
        assert [status[name] for name in known] == [1, os.getpid(), 1, 1, 2, True, {}]
        assert status["database"] == str(tmp_path / "db" / "state.db")

    scenario(tmp_path, act)


def test_a_failed_device_is_stored_with_who_uses_it(tmp_path: Path) -> None:
    async def act(exchange: Exchange, weaver: Weaver, caller: Caller) -> None:
        await with_job(exchange, devices=["GPU-1"])
        facts = {"device": "GPU-1", "state": "failed", "source": "dcgm", "reason": "XID 79"}

        answer = await caller.ask("device_event", **facts)
        found = await caller.ask("devices")

        assert answer["processes"] == ["job-1/trainer/0", "job-1/trainer/1"]
        assert (answer["state"], answer["reason"]) == ("failed", "XID 79")
        assert [device["uuid"] for device in found["devices"]] == ["GPU-1"]
        assert [rank["reason"] for rank in await caller.ask("ranks")] == ["device_failed_GPU-1"] * 2
        assert found["version"] == weaver.devices.map.version

    scenario(tmp_path, act)
