"""What the user no longer wants kept goes: folders, records, rows; all else stays."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.bus.memory import Exchange
from torchloom.client.plane import question
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import removal
from torchloom.messages.plane import Metrics
from torchloom.rules.retention import Removal, RetentionLimits
from torchloom.specs.api import AppState
from torchloom.specs.states import JobState
from torchloom.weaver.api.router import Router
from torchloom.weaver.jobs.retention import RunRetention
from torchloom.weaver.service import Weaver

from ...harness.ended_runs import ended_run
from ...harness.fake_agents import FakeAgent, crowd, job_event, rows, until, weaver_at

DAY = 86400.0
OLD, NEW, LIVE = "old-1", "new-1", "live-1"
OF_JOB = {
    "state": {
        "jobs": "id",
        "runs": "job",
        "ranks": "job",
        "commands": "job",
        "events": "job",
        "guards": "job",
        "submissions": "job",
    },
    "records": {"series": "job", "events": "job", "received": "job"},
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "loom"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("LOOMCONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def asking(name: str, **facts: Any) -> dict[str, Any]:
    return question(name, facts)


def left(folder: Path, job: str) -> set[str]:
    """Return which tables still have anything of a job, by sqlite3 alone."""
    return {
        f"{database}.{table}"
        for database, tables in OF_JOB.items()
        for table, column in tables.items()
        if rows(folder, f"SELECT 1 FROM {table} WHERE {column} = '{job}' LIMIT 1", database)
    }


async def trained(exchange: Exchange, weaver: Weaver, job: str, ends: bool = True) -> FakeAgent:
    """Have a job whose rank told a curve and was changed; it has a folder if it is over."""
    agent, (rank,) = await crowd(exchange, 1, job=job)
    agent.name = f"node-{job}"
    await agent.start()
    await agent.hello()
    await agent.send(rank.head, 1, Metrics(rank.head, ("loss",), ((1, 1.0, 0.5), (2, 2.0, 0.25))))
    await agent.stored(rank.head, 1)
    asked = asking("set", job=job, values={"lr": 0.01}, author="ada", wait=10.0)
    assert (await Router(weaver).answer(asked))["ok"]["state"] == "applied"
    if ends:
        ended_run(job, 0.0)
        stacks = [{"ranks": [0], "frames": ["f (a.py:1)"]}]
        facts = {"role": "trainer", "culprits": [], "awaited": [], "kind": "waiting"}
        weaver.journal.note("verdict", job, facts={**facts, "words": "w", "stacks": stacks})
        await agent.act(job_event("job_ended", job, state="COMPLETED", reason="ranks_ended"))
        await until(lambda: weaver.jobs.get(job).state == "COMPLETED")  # type: ignore[union-attr]
    return agent


def retaining(weaver: Weaver, days: float, **limits: Any) -> RunRetention:
    """Return what removes, so many days from now."""
    return RunRetention(
        weaver.store,
        weaver.jobs,
        weaver.journal,
        weaver.checkpoint_rows,
        weaver.tasks,
        lambda: RetentionLimits(**{"keep": 0, **limits}),
        lambda: time.time() + days * DAY,
    )


def scene(tmp_path: Path, act: Callable[[Weaver], Awaitable[None]], *jobs: str) -> None:
    async def story() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path / "db", exchange) as weaver:
            for job in jobs:
                await trained(exchange, weaver, job, ends=job != LIVE)
            await act(weaver)

    asyncio.run(story())


def test_a_run_that_is_old_goes_whole_and_one_that_lives_stays(tmp_path: Path) -> None:
    async def act(weaver: Weaver) -> None:
        before = left(tmp_path / "db", LIVE)
        assert left(tmp_path / "db", OLD) >= before >= {"state.jobs", "records.series"}

        done = await retaining(weaver, 100, runs=90 * DAY).carry_out()

        assert done == [(Removal("run", OLD), (True, "removed"))]
        assert weaver.jobs.get(OLD) is None
        assert left(tmp_path / "db", OLD) == set()
        assert left(tmp_path / "db", LIVE) == before

    scene(tmp_path, act, OLD, LIVE)

    assert not (tmp_path / "loom/runs" / OLD).exists()
    ((author, facts),) = rows(
        tmp_path / "db", "SELECT author, facts FROM events WHERE kind = 'run_removed'"
    )
    assert (author, f'"job":"{OLD}"' in facts.replace(" ", "")) == ("retention", True)
    commands = rows(tmp_path / "db", "SELECT id FROM commands")
    acks = rows(tmp_path / "db", "SELECT DISTINCT command FROM command_acks")
    assert acks == commands
    (metrics,) = rows(tmp_path / "db", "SELECT count(*) FROM series", "records")
    assert metrics == (1,)


def test_a_clock_that_is_set_back_keeps_a_run_longer_and_one_set_forward_less_long(
    tmp_path: Path,
) -> None:
    days = [0.0]

    async def act(weaver: Weaver) -> None:
        retention = RunRetention(
            weaver.store,
            weaver.jobs,
            weaver.journal,
            weaver.checkpoint_rows,
            weaver.tasks,
            lambda: RetentionLimits(runs=2 * DAY, keep=0),
            lambda: time.time() + days[0] * DAY,
        )
        found = []
        for days[0] in (0.0, -100.0, 1.0, -1.0, 3.0):
            found.append([one.job for one, _ in await retention.carry_out()])

        assert found == [[], [], [], [], [OLD]]

    scene(tmp_path, act, OLD)


def test_the_last_ones_and_the_pinned_stay(tmp_path: Path) -> None:
    async def act(weaver: Weaver) -> None:
        pins = frozenset({OLD})

        assert await retaining(weaver, 100, runs=DAY, keep=2).carry_out() == []
        done = await retaining(weaver, 100, runs=DAY, pinned=pins).carry_out()

        assert [one.job for one, _ in done] == [NEW]

    scene(tmp_path, act, OLD, NEW)

    assert (tmp_path / "loom/runs" / OLD).is_dir()


def test_both_the_weaver_and_the_runs_own_record_must_say_that_it_is_over(tmp_path: Path) -> None:
    async def act(weaver: Weaver) -> None:
        ended_run(LIVE)  # its ranks live on
        running = ended_run("gpt-1", state=AppState.RUNNING, launcher=ProcessIdentity.mine())
        weaver.jobs.update(job_event("job", "gpt-1", scheduler="local"))
        weaver.jobs.end("gpt-1", JobState.FAILED, "lost")

        parts = {"runs": DAY, "metrics": DAY, "logs": DAY, "dumps": DAY}
        assert await retaining(weaver, 100, **parts).carry_out() == []

        assert (running / "logs").is_dir()
        assert {job.id for job in weaver.jobs.all()} == {LIVE, "gpt-1"}

    scene(tmp_path, act, LIVE)


def test_parts_go_alone_and_once(tmp_path: Path) -> None:
    async def act(weaver: Weaver) -> None:
        parts = retaining(weaver, 40, runs=90 * DAY, metrics=30 * DAY, logs=7 * DAY, dumps=DAY)

        done = await parts.carry_out()

        assert [one.what for one, (is_done, _) in done if is_done] == ["metrics", "logs", "dumps"]
        assert await parts.carry_out() == []
        again = retaining(weaver, 40, metrics=DAY, logs=DAY, dumps=DAY)
        assert await again.find() == []  # another weaver finds nothing either
        assert weaver.store.records.points(OLD) == []
        assert len(weaver.store.records.points(LIVE)) == 2
        kept = (await Router(weaver).answer(asking("stacks", job=OLD)))["ok"]
        (role,) = kept["roles"]
        assert (role["verdict"]["words"], role["stacks"]) == ("w", [])

    scene(tmp_path, act, OLD, LIVE)

    folder = tmp_path / "loom/runs" / OLD
    assert {path.name for path in folder.iterdir()}.isdisjoint({"logs", "dumps"})
    assert (folder / "status.json").exists()


def test_a_removal_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    async def act(weaver: Weaver) -> None:
        removal.remove_run(OLD)  # and then the weaver was killed

        done = await retaining(weaver, 100, runs=DAY).carry_out()

        assert [(one, is_done) for one, (is_done, _) in done] == [(Removal("run", OLD), True)]
        assert left(tmp_path / "db", OLD) == set()

    scene(tmp_path, act, OLD)


def test_what_is_due_can_be_asked_and_had_done_at_the_door(tmp_path: Path) -> None:
    (tmp_path / ".loomconfig").write_text("[retention]\nruns = 0h\nkeep = 0\n")

    async def act(weaver: Weaver) -> None:
        answering = Router(weaver)
        row = {"kind": "run", "job": OLD}

        would = await answering.answer(asking("retain", dry=True))
        assert (tmp_path / "loom/runs" / OLD).is_dir()
        done = await answering.answer(asking("retain"))

        assert would == {"ok": [{**row, "done": False, "text": "would remove"}]}
        assert done == {"ok": [{**row, "done": True, "text": "removed"}]}
        assert "retain" not in answering.on_the_bus  # nobody removes anything over the bus

    scene(tmp_path, act, OLD)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs = 90d\nkeep = 7\npinned = best", {"runs": 90 * DAY, "keep": 7, "pinned": ["best"]}),
        (
            "logs = soon",
            {"problem": "[retention] logs = soon: write an age such as 12h, 90d or 4w, or never"},
        ),
    ],
)
def test_what_is_in_force_can_be_asked_and_so_can_what_is_wrong_with_it(
    tmp_path: Path, text: str, said: dict[str, Any]
) -> None:
    (tmp_path / ".loomconfig").write_text(f"[retention]\n{text}\n")
    nothing = {"runs": None, "metrics": None, "logs": None, "dumps": None}

    async def act(weaver: Weaver) -> None:
        answer = await Router(weaver).answer(asking("retention"))

        assert answer == {"ok": {**nothing, "keep": 100, "pinned": [], "problem": None, **said}}

    scene(tmp_path, act, OLD)


def test_a_run_whose_end_nobody_can_read_stays_and_keeps_no_other(tmp_path: Path) -> None:
    (tmp_path / ".loomconfig").write_text("[retention]\nruns = 0h\nkeep = 0\n")

    async def act(weaver: Weaver) -> None:
        record = ended_run("odd-1") / "status.json"
        record.write_text(record.read_text().replace('"ended_at": "2', '"ended_at": "x'))

        weaver.retention.remove_soon()

        await until(lambda: weaver.jobs.get(OLD) is None)

    scene(tmp_path, act, OLD)

    assert [path.name for path in (tmp_path / "loom/runs").iterdir() if path.is_dir()] == ["odd-1"]


def test_with_a_mistake_in_the_file_nothing_goes_and_the_weaver_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".loomconfig").write_text("[retention]\nruns = 0h\nkeep = 0\nlogs = soon\n")

    async def act(weaver: Weaver) -> None:
        weaver.retention.remove_soon()
        await until(lambda: "nothing is removed" in caplog.text)
        refused = await Router(weaver).answer(asking("retain"))

        assert (refused["code"], refused["field"]) == ("bad_retention", "logs")
        assert weaver.jobs.get(OLD) is not None

    scene(tmp_path, act, OLD)

    assert "write an age such as 12h, 90d or 4w, or never" in caplog.text
    assert (tmp_path / "loom/runs" / OLD).is_dir()
