"""What is said of a job: the engine's word and the run's; replicas, hosts, logs by one reader."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchloom.cli.commands.cmd_run import EngineSubmission
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.logs.files import LogFiles
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.launch.records.request import LaunchRequest
from torchloom.schedulers.batch import logs
from torchloom.schedulers.batch.index import Index, IndexEntry
from torchloom.schedulers.batch.status import FORGOTTEN, Answer, EngineJob, state_of
from torchloom.schedulers.slurm_scheduler import SlurmScheduler
from torchloom.specs.api import AppState, AppStatus

RUNNING = EngineJob("7", AppState.RUNNING, hosts=("n1", "n2"))


class Known(SlurmScheduler):
    """Slurm, with an answer that the test gives."""

    answer: Mapping[str, EngineJob] = {}

    def _ask_all(self) -> Answer:
        return self.answer


def record(state: AppState, reason: str = "", ranks: int = 2) -> RunRecord:
    return RunRecord(
        id="app-x",
        name="app",
        session="torchx",
        owner="me",
        host="n1",
        log_dir="",
        created_at="2026-01-01T00:00:00+00:00",
        state=state,
        reason=reason,
        ranks=tuple(
            RankRecord(
                *("a", rank, rank, 0),
                state=state,
                process=ProcessIdentity(f"n{rank + 1}", "boot", 1, "x"),
                logs=f"a/{rank}/0",
            )
            for rank in range(ranks)
        ),
    )


def scheduler(home: Path, tmp_path: Path, *jobs: EngineJob, replicas: int = 2) -> Known:
    """Return Slurm as it knows a job that was submitted from here."""
    (tmp_path / "job").mkdir()
    Index("slurm").add(
        IndexEntry(
            "7", "slurm", "app-x", "app", "torchx", str(tmp_path / "job"), "t", {"a": replicas}
        )
    )
    found = Known("slurm", "torchx")
    found.answer = {job.id: job for job in jobs}
    return found


def keep(kept: RunRecord, home: Path) -> None:
    """Write down a run; its logs are in a folder of the home, beside those of an array's tasks."""
    place = str(home / kept.id.replace("app-x", "logs"))
    request = LaunchRequest(kept.id, "app", "torchx", "/", place, ())
    RunFolder.create(request, {}, replace(kept, log_dir=place)).publish()


@pytest.mark.parametrize(
    ("job", "kept", "end", "expected"),
    [
        (None, None, {}, (AppState.UNKNOWN, FORGOTTEN)),
        (None, None, {"state": "FAILED", "reason": "x"}, (AppState.FAILED, "x")),
        (None, record(AppState.SUCCEEDED), {}, (AppState.SUCCEEDED, "")),
        (None, record(AppState.RUNNING), {}, (AppState.UNKNOWN, FORGOTTEN)),
        (RUNNING, None, {}, (AppState.RUNNING, "")),
        (
            EngineJob("7", AppState.FAILED),
            record(AppState.FAILED, "exit_code_7_rank_1"),
            {},
            (AppState.FAILED, "exit_code_7_rank_1"),
        ),
        (
            EngineJob("7", AppState.FAILED, why="time_limit"),
            record(AppState.CANCELLED, "cancelled_by_user"),
            {},
            (AppState.FAILED, "time_limit"),
        ),
        (
            EngineJob("7", AppState.FAILED),
            record(AppState.CANCELLED, "cancelled_by_user"),
            {},
            (AppState.CANCELLED, "cancelled_by_user"),
        ),
        (
            EngineJob("7", AppState.PENDING, why="requeued: BeginTime"),
            record(AppState.CANCELLED, "requeued_before_limit"),
            {"state": "CANCELLED", "reason": "x"},
            (AppState.PENDING, "requeued: BeginTime"),
        ),
    ],
)
def test_the_engines_word_counts_and_the_runs_says_why(
    job: EngineJob | None,
    kept: RunRecord | None,
    end: dict[str, str],
    expected: tuple[AppState, str],
) -> None:
    assert state_of(job, kept, end) == expected


def test_replicas_are_shown_with_their_hosts_before_and_after_they_run(
    home: Path, tmp_path: Path
) -> None:
    engine = scheduler(home, tmp_path, RUNNING)

    before = engine.describe("7")
    keep(record(AppState.RUNNING), home)
    engine.answer = {"7": EngineJob("7", AppState.PENDING, why="requeued")}
    engine._query.forget()
    again = engine.describe("7")

    assert before is not None
    assert again is not None
    (role,), (waiting,) = before.roles_statuses, again.roles_statuses
    assert [(one.hostname, one.state) for one in role.replicas] == [
        ("n1", AppState.RUNNING),
        ("n2", AppState.RUNNING),
    ]
    assert [one.state for one in waiting.replicas] == [AppState.PENDING] * 2
    assert engine.describe("8") is None


def test_lines_of_a_hundred_replicas_are_read_once_each(home: Path, tmp_path: Path) -> None:
    engine = scheduler(home, tmp_path, replicas=100)
    keep(record(AppState.SUCCEEDED, ranks=100), home)
    for rank in range(100):
        files = LogFiles(home / "logs" / f"a/{rank}/0")
        files.write("stdout", f"line of {rank}\n".encode() * 2)
        files.write("stderr", b"other\n")
        files.close()

    lines = list(engine.log_lines("7", stream="stdout"))

    expected = [f"[rank{rank}]: line of {rank}\n" for rank in range(100) for _ in range(2)]
    assert sorted(lines) == sorted(expected)


def test_tasks_of_an_array_that_begin_later_are_followed_too(home: Path, tmp_path: Path) -> None:
    scheduler(home, tmp_path, replicas=1)
    entry = Index("slurm").get("7")
    assert entry is not None

    def begin(task: int) -> None:
        keep(replace(record(AppState.RUNNING, ranks=1), id=f"app-x-{task}"), home)
        files = LogFiles(home / f"logs-{task}" / "a/0/0")
        files.write("stdout", f"line of task {task}\n".encode())
        files.close()

    looks = iter([False, True])

    def is_over() -> bool:
        over = next(looks, True)
        if over:
            begin(1)
        return over

    begin(0)
    lines = list(logs.lines(entry, [("a", 0)], is_over, follow=True, stream="stdout"))

    assert lines == ["[task0 rank0]: line of task 0\n", "[task1 rank0]: line of task 1\n"]


@pytest.mark.parametrize(
    ("state", "codes", "expected"),
    [
        (AppState.SUCCEEDED, (0, 0), 0),
        (AppState.FAILED, (None, 7), 7),
        (AppState.FAILED, (-9, None), 137),
        (AppState.FAILED, (None, None), 1),  # the engine ended it before any rank did
    ],
)
def test_who_follows_a_job_ends_with_its_first_bad_ranks_code(
    home: Path,
    tmp_path: Path,
    state: AppState,
    codes: tuple[int | None, int | None],
    expected: int,
) -> None:
    engine = scheduler(home, tmp_path, EngineJob("7", state))
    kept = record(state)
    ranks = tuple(replace(r, exit_code=c) for r, c in zip(kept.ranks, codes, strict=True))
    keep(replace(kept, ranks=ranks), home)
    runner: Any = SimpleNamespace(
        schedule=lambda info: "slurm://torchx/7",
        scheduler=lambda backend: engine,
        wait=lambda handle: AppStatus(state),
    )
    info: Any = SimpleNamespace(request=None)
    submission = EngineSubmission(runner, info)
    submission.submit()

    assert submission.wait() == expected


def test_a_run_that_was_resumed_is_removed_with_all_of_its_jobs(home: Path, tmp_path: Path) -> None:
    engine = scheduler(home, tmp_path, EngineJob("7", AppState.SUCCEEDED))
    first = Index("slurm").get("7")
    assert first is not None

    Index("slurm").add(replace(first, job="9"))
    (tmp_path / "job" / "end.json").write_text(json.dumps({"state": "FAILED", "reason": ""}))

    engine.delete("7")

    assert Index("slurm").all() == []
    assert not (tmp_path / "job").exists()
