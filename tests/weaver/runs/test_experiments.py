"""Runs are recorded and jobs summed up, once, with what comes late and over restarts."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.record_writer import rank_records
from torchloom.launch.records.request import LaunchRequest, ReplicaRequest, RoleRequest
from torchloom.messages.plane import Event, Goodbye, Head, Metrics
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import Fact, RunRow

from ...harness.fake_agents import Exchange, crowd, job_event, rows, until, weaver_at

SUMMARY = "SELECT json_extract(facts, '$.summary') FROM jobs WHERE id = 'job-1'"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "home"


def folder_of(cwd: Path, **env: str) -> RunFolder:
    """Return the run folder of `job-1`, started in a folder with variables of its own."""
    argv = (sys.executable, "train.py", "--token", "hunter2")
    replica = ReplicaRequest(argv, {"LOOM_PYTHON": sys.executable, **env})
    role = RoleRequest("trainer", (replica,), ranks=2, distributed=True)
    request = LaunchRequest("job-1", "train", "torchx", str(cwd), "/logs", (role,))
    record = RunRecord(
        id="job-1",
        name="train",
        session="torchx",
        owner="ann",
        host=host_name(),
        log_dir="/logs",
        created_at=now(),
        launcher=ProcessIdentity.mine(),
        ranks=rank_records(request),
    )
    return RunFolder.create(request, {}, record).publish()


def summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary that the database has, read without anything of ours."""
    ((text,),) = rows(folder, SUMMARY)
    return json.loads(text) if text else None


def record_of(weaver: Weaver) -> Any:
    fact = weaver.store.state.one(Fact, name="experiment/job-1")
    return fact.value if fact else None


@pytest.mark.process
def test_what_surrounds_a_job_is_recorded_when_it_begins(tmp_path: Path) -> None:
    project = tmp_path / "project"
    subprocess.run(["git", "init", "-q", "-b", "work", str(project)], check=True)
    (project / "train.py").write_text("pass\n")
    spec = {"name": "toy", "seed": 7, "project": "toys", "tags": ["a"], "env": {"KEY": "s3cret"}}
    folder = folder_of(project, LOOM_JOB_SPEC=json.dumps(spec), PYTHONHASHSEED="3", KEY="s3cret")

    async def scenario() -> Any:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 2)
            await agent.hello()
            await until(lambda: record_of(weaver))
            return record_of(weaver), weaver.store.state.one(RunRow, id="job-1")

    record, run = asyncio.run(scenario())

    assert (record["cwd"], record["interpreter"]) == (str(project), sys.executable)
    assert record["argv"] == [sys.executable, "train.py", "--token", "***"]
    assert record["seeds"] == {"spec": 7, "PYTHONHASHSEED": "3"}
    assert (record["git"]["branch"], record["git"]["untracked"]) == ("work", ["train.py"])
    assert record["packages"]["pytest"] == pytest.__version__
    assert record["world_size"] == 2
    assert record["hardware"]["nodes"] == sorted({"node1", host_name()})
    assert {"KEY", "PYTHONHASHSEED"} <= set(record["env"]["names"])
    assert json.loads((folder.path / "experiment.json").read_bytes()) == record
    assert (folder.path / "experiment.json").stat().st_mode & 0o777 == 0o600
    assert not {"s3cret", "hunter2"} & set(json.dumps(record).replace('"', " ").split())
    assert run.config["project"] == "toys"
    assert (run.config["tags"], run.config["branch"]) == (["a"], "work")


def test_a_run_is_recorded_once_though_the_weaver_comes_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)

    async def scenario() -> tuple[Any, Any]:
        exchange = Exchange()
        agent, _ = await crowd(exchange, 1)
        async with weaver_at(tmp_path, exchange) as weaver:
            await agent.hello()
            await until(lambda: record_of(weaver))
            first = record_of(weaver)
        (folder.path / "experiment.json").unlink()
        async with weaver_at(tmp_path, exchange) as weaver:
            await agent.hello()
            await until(lambda: not weaver.experiments._timers and not weaver.experiments._tasks)
            return first, record_of(weaver)

    first, second = asyncio.run(scenario())

    assert first == second
    assert not (folder.path / "experiment.json").exists()


def test_a_job_that_nobody_launched_and_that_is_elsewhere_has_a_record_all_the_same(
    tmp_path: Path,
) -> None:
    async def scenario() -> Any:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 1)
            await agent.hello()
            await until(lambda: record_of(weaver))
            return record_of(weaver)

    record = asyncio.run(scenario())

    assert (record["cwd"], record["git"], record["packages"]) == (None, None, {})
    assert record["notes"] == [
        "the job's interpreter could not be found; its packages are not known"
    ]


def test_the_project_that_a_program_names_is_that_of_its_run(tmp_path: Path) -> None:
    async def scenario() -> RunRow | None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            await agent.send(rank.head, 1, Event(rank.head, "init", -1, 1.0, {"project": "toys"}))
            await until(lambda: record_of(weaver))
            return weaver.store.state.one(RunRow, id="job-1")

    run = asyncio.run(scenario())

    assert run is not None
    assert run.config["project"] == "toys"


def metric(last: float, least: float, greatest: float, step: int) -> dict[str, float]:
    """Return what is left of a loss, whose least was at a step."""
    return {
        "goal": "min",
        "last": last,
        "min": least,
        "max": greatest,
        "best": least,
        "best_step": step,
    }


def test_a_job_that_has_ended_is_summed_up_with_what_comes_late(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, Any]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            await agent.send(rank.head, 1, Metrics(rank.head, ("loss",), ((1, 10.0, 0.5),)))
            await agent.stored(rank.head, 1)
            await agent.act(Goodbye(rank.head, 3))
            await until(lambda: summary(tmp_path))
            first = summary(tmp_path)
            late = Metrics(rank.head, ("loss",), ((2, 11.0, 0.2),))
            facts = {"steps": 3, "samples": 96}
            await agent.send(rank.head, 2, late, Event(rank.head, "trained", 2, 1.0, facts))
            await until(lambda: summary(tmp_path) != first)
            return first, summary(tmp_path)

    first, second = asyncio.run(scenario())

    assert first["metrics"] == {"loss": metric(0.5, 0.5, 0.5, 1)}
    assert (first["steps"], first["samples"], first["faults"]) == (3, None, [])
    assert second["metrics"] == {"loss": metric(0.2, 0.2, 0.5, 2)}
    assert (second["steps"], second["samples"]) == (3, 96)


def test_a_weaver_that_dies_right_after_an_end_leaves_the_summary_to_the_next(
    tmp_path: Path,
) -> None:
    async def scenario() -> tuple[Any, Any]:
        exchange = Exchange()
        agent, (rank,) = await crowd(exchange, 1)
        async with weaver_at(tmp_path, exchange) as weaver:
            await agent.hello()
            await agent.send(rank.head, 1, Metrics(rank.head, ("loss",), ((1, 10.0, 0.5),)))
            await agent.stored(rank.head, 1)
            await agent.act(Goodbye(rank.head, 3))
            await until(lambda: weaver.jobs.active() == [])
            agent.ranks.clear()  # it has ended, and its agent knows
        before = summary(tmp_path)
        async with weaver_at(tmp_path, exchange):
            await until(lambda: summary(tmp_path))
            return before, summary(tmp_path)

    before, after = asyncio.run(scenario())

    assert before is None
    assert after["metrics"] == {"loss": metric(0.5, 0.5, 0.5, 1)}


def test_a_job_that_runs_again_is_summed_up_at_its_next_end(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, Any]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, (rank,) = await crowd(exchange, 1)
            await agent.hello()
            for attempt in (1, 2):
                told = job_event("job", attempt=attempt, scheduler="local")
                await agent.act(told)
                await agent.act(job_event("job_ended", state="FAILED", reason="exit_code_1_rank_0"))
                await until(lambda: weaver.jobs.active() == [])
                await until(lambda n=attempt: (summary(tmp_path) or {}).get("restarts") == n - 1)
                if attempt == 1:
                    first = summary(tmp_path)
                    head = Head(1, "job-1", 1, 0, "life-2")
                    agent.rank(rank.register.__class__(head, *_rest(rank.register)))
                    await agent.hello()
                    await until(lambda: weaver.jobs.active() != [])
            return first, summary(tmp_path)

    first, second = asyncio.run(scenario())

    assert (first["restarts"], second["restarts"]) == (0, 1)
    assert second["wall_seconds"] > first["wall_seconds"]


def _rest(register: Any) -> tuple[Any, ...]:
    names = register.__struct_fields__[1:]
    return tuple(getattr(register, name) for name in names)


def test_a_folder_of_a_strange_name_is_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "home" / "runs").mkdir(parents=True)
    (tmp_path / "home" / "request.json").write_text(json.dumps({"cwd": "/", "roles": []}))

    async def scenario() -> Any:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            agent, _ = await crowd(exchange, 1, job="..")
            await agent.hello()
            name = "experiment/.."
            await until(lambda: weaver.store.state.one(Fact, name=name))
            fact = weaver.store.state.one(Fact, name=name)
            return fact.value if fact else None

    assert asyncio.run(scenario())["cwd"] is None
    assert not (tmp_path / "home" / "experiment.json").exists()
