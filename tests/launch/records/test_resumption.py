"""Runs that are started again, and runs that go on after their end: with real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint import Draft, Manifest, Shard, open_storage
from torchloom.components.dist import loom
from torchloom.components.job import app_of
from torchloom.errors import LoomError
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records import catalog, resumption
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.runner.api import Runner, get_runner
from torchloom.schedulers.local_scheduler import LocalScheduler, create_scheduler
from torchloom.specs.api import AppDef, AppState
from torchloom.specs.jobspec_shape import job_from_dict

from ...harness.home import processes_of, until

pytestmark = pytest.mark.process
SCRIPT = """
import json, os, sys, time
names = "LOOM_ATTEMPT LOOM_GENERATION TORCHELASTIC_RESTART_COUNT LOOM_RESUME WORLD_SIZE".split()
line = json.dumps([os.environ.get("RANK"), *map(os.environ.get, names)]) + "\\n"
file = os.open(os.environ["OUT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(file, line.encode())
print("life", os.environ["LOOM_GENERATION"], flush=True)
if int(os.environ["LOOM_GENERATION"]) < int(os.environ.get("FAILS", 0)):
    raise ValueError("on a bad day")
time.sleep(float(os.environ.get("SECONDS", 0)))
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_PLANE", "0")
    monkeypatch.setenv("LOOM_WARM", "0")


@pytest.fixture
def out(home: Path) -> Path:
    return home / "out"


@pytest.fixture
def script(home: Path) -> Path:
    path = home.parent / "project" / "note.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def scheduler(home: Path) -> LocalScheduler:
    return create_scheduler("torchx")


@pytest.fixture
def run(script: Path, out: Path) -> Iterator[Callable[..., str]]:
    """Start a run of the script, and return its id."""
    runners: list[Runner] = []

    def start(app: AppDef | None = None, ranks: int = 1, retries: int = 0, **env: str) -> str:
        runner = get_runner()
        runners.append(runner)
        env = {"OUT": str(out), **env}
        made = app or loom(script=str(script), j=str(ranks), env=env, max_retries=retries)
        return runner.run(made, "local", {"grace": 3}).rpartition("/")[2]

    yield start
    for runner in runners:
        runner.close()


def job(script: Path, out: Path, **more: Any) -> AppDef:
    env = {"OUT": str(out), **more.pop("env", {})}
    return app_of(job_from_dict({"name": "job", "script": str(script), "env": env, **more}))


def lives(out: Path) -> list[list[str | None]]:
    """Return what each rank noted of itself: rank, three numbers, LOOM_RESUME, world size."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def over(app_id: str) -> RunRecord:
    until(lambda: catalog.record(app_id).is_over())  # type: ignore[union-attr]
    record = catalog.record(app_id)
    assert record is not None
    assert record.wait_end(20)
    return record


def events(app_id: str, kind: str) -> list[dict[str, Any]]:
    found = [event for event in RunFolder.named(app_id).events() if event["event"] == kind]
    return [{k: v for k, v in event.items() if k not in ("time", "event")} for event in found]


def commit(root: Path, step: int, generation: int = 0) -> str:
    """Make a checkpoint by hand."""
    storage = open_storage(str(root), {})
    draft = Draft(step, generation, 0)
    written = storage.write_shard(draft, "worker_0.pt", [memoryview(b"x" * 100)])
    shard = Shard("worker_0.pt", written.size, written.hash, 0)
    words = ("a", "a", step, 0, 1, "data_parallel", "gloo", (shard,), True, True)
    stamp = "2026-01-01T00:00:00+00:00"
    return storage.commit(draft, Manifest(*words, generation, 0, stamp))


def kill_all_of(app_id: str) -> None:
    """Kill whatever runs of an app, the guard first, until nothing is left."""
    while pids := processes_of(app_id):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_restart_goes_on_from_the_newest_whole_checkpoint_and_says_so_first(
    script: Path, out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(job(script, out, env={"SECONDS": "60"}, checkpointing={"enabled": True}))
    until(lambda: lives(out))
    root = RunFolder.named(app_id).path / "checkpoints"
    older, newest = commit(root, 9), commit(root, 10)
    Path(newest, "manifest.json").write_text("{}")  # damaged
    draft = open_storage(str(root), {}).write_shard(
        Draft(20, 0, 0), "worker_0.pt", [memoryview(b"half")]
    )
    rank = catalog.record(app_id).ranks[0]  # type: ignore[union-attr]

    os.kill(rank.process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    until(lambda: len(lives(out)) == 2)
    scheduler.stop(app_id, at_once=True)
    over(app_id)

    assert draft.size == 4
    assert lives(out) == [
        ["0", "0", "0", "0", None, "1"],
        ["0", "1", "1", "1", older, "1"],
    ]
    reason = "exit_signal_9_rank_0"
    facts = {"step": 9, "place": older, "generation": 1, "reason": reason}
    assert events(app_id, "resuming") == [facts]
    assert events(app_id, "restart") == [{"restarts": 1, "reason": reason}]
    kinds = [event["event"] for event in RunFolder.named(app_id).events()]
    assert (
        kinds.index("restart")
        < kinds.index("resuming")
        < len(kinds) - 1 - kinds[::-1].index("started")
    )
    assert not list(root.glob("*.g0-*")), "a draft of the life before is left"
    assert (root / "fence").read_text() == "1\n"


def test_a_run_that_never_saved_is_told_that_this_is_no_first_start_and_has_no_folder(
    out: Path, run: Callable[..., str]
) -> None:
    app_id = run(retries=1, FAILS="1")

    assert over(app_id).state is AppState.SUCCEEDED
    assert [life[4] for life in lives(out)] == [None, "1"]
    assert not (RunFolder.named(app_id).path / "checkpoints").exists()
    assert events(app_id, "resuming") == []


def test_a_job_that_saves_recovers_without_a_word_about_recovery(
    script: Path, out: Path, run: Callable[..., str]
) -> None:
    app_id = run(job(script, out, env={"FAILS": "2"}, checkpointing={"enabled": True}))

    assert over(app_id).state is AppState.SUCCEEDED
    assert [life[2] for life in lives(out)] == ["0", "1", "2"]


def test_a_crash_loop_ends_a_job_that_saves_with_its_first_error(
    script: Path, out: Path, run: Callable[..., str]
) -> None:
    more = {"checkpointing": {"enabled": True}, "recovery": {"attempts": 50}}
    app_id = run(job(script, out, env={"FAILS": "99"}, **more))

    record = over(app_id)

    assert (record.state, record.reason) == (AppState.FAILED, "crash_loop_exit_code_1_rank_0")
    assert [life[2] for life in lives(out)] == ["0", "1", "2", "3"]
    error = dict(record.first_error)
    assert (error["rank"], error["attempt"]) == (0, 0)
    assert error["traceback"].startswith("Traceback (most recent call last)")
    assert error["traceback"].rstrip().endswith("ValueError: on a bad day")


def test_a_job_that_waits_before_its_restart_is_stopped_at_once(
    script: Path, out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    recovery = {"attempts": 3, "backoff": 60}
    app_id = run(job(script, out, env={"FAILS": "9"}, recovery=recovery))
    until(lambda: events(app_id, "backoff"))

    began = time.monotonic()
    scheduler.stop(app_id)
    record = over(app_id)

    assert time.monotonic() - began < 30
    assert (record.state, record.reason) == (AppState.CANCELLED, "cancelled_by_user")
    assert events(app_id, "backoff") == [{"seconds": 60.0, "reason": "exit_code_1_rank_0"}]
    assert len(lives(out)) == 1


def test_the_wait_before_a_restart_is_really_waited_for(
    script: Path, out: Path, run: Callable[..., str]
) -> None:
    recovery = {"attempts": 2, "backoff": 0.4}
    app_id = run(job(script, out, env={"FAILS": "2"}, recovery=recovery))

    over(app_id)

    stamps = [e["time"] for e in RunFolder.named(app_id).events() if e["event"] == "started"]
    times = [time_of(stamp) for stamp in stamps]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[0] >= 0.4
    assert gaps[1] >= 0.8


def time_of(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def test_the_first_error_is_known_though_the_last_life_left_none(
    home: Path, script: Path, out: Path, run: Callable[..., str]
) -> None:
    script.write_text(SCRIPT.replace("time.sleep", "os.abort() if 1 else time.sleep"))
    app_id = run(retries=1, FAILS="1")

    record = over(app_id)

    assert record.reason == "exit_signal_6_rank_0"
    status = json.loads((RunFolder.named(app_id).path / "status.json").read_text())
    error = status["first_error"]
    assert (error["rank"], error["attempt"]) == (0, 0)
    assert error["traceback"].rstrip().endswith("ValueError: on a bad day")


def test_an_ended_run_goes_on_as_a_new_attempt_of_the_same_run(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(retries=1, FAILS="3")
    assert over(app_id).state is AppState.FAILED
    commit(RunFolder.named(app_id).path / "checkpoints", 5, generation=1)

    scheduler.resume(app_id)
    record = over(app_id)

    place = str(RunFolder.named(app_id).path / "checkpoints/ckpt_step_00005")
    assert lives(out) == [
        ["0", "0", "0", "0", None, "1"],
        ["0", "1", "1", "1", "1", "1"],
        ["0", "2", "2", "2", place, "1"],
        ["0", "3", "3", "3", place, "1"],
    ]
    assert (record.state, record.restarts) == (AppState.SUCCEEDED, 3)
    folder = RunFolder.named(app_id).path
    log = (folder / "logs/note/0/0/stdout.log").read_text()
    assert log == "life 0\nlife 1\nlife 2\nlife 3\n"
    before = RunRecord.from_dict(json.loads((folder / "attempt-2/status.json").read_text()))
    assert (before.state, before.restarts) == (AppState.FAILED, 1)
    kinds = [event["event"] for event in RunFolder.named(app_id).events()]
    assert [kind for kind in kinds if kind in ("running", "failed", "resumed", "succeeded")] == [
        *("running", "failed", "resumed", "running", "succeeded")
    ]
    assert [each.state for each in catalog.records()] == [AppState.SUCCEEDED]


def test_while_it_goes_on_every_list_has_it_running(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(SECONDS="0")
    over(app_id)
    assert [record.state for record in catalog.records()] == [AppState.SUCCEEDED]
    request = RunFolder.named(app_id).path / "request.json"
    request.write_text(request.read_text().replace('"SECONDS": "0"', '"SECONDS": "60"'))

    scheduler.resume(app_id)
    until(lambda: len(lives(out)) == 2)

    assert [record.state for record in catalog.records()] == [AppState.RUNNING]
    scheduler.stop(app_id, at_once=True)
    assert over(app_id).state is AppState.CANCELLED
    assert [record.state for record in catalog.records()] == [AppState.CANCELLED]


@pytest.mark.parametrize("boot", ["this one", "another"])
def test_a_run_of_which_everything_was_killed_goes_on_even_after_another_boot(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler, boot: str
) -> None:
    app_id = run(ranks=2, SECONDS="60")
    until(lambda: len(lives(out)) == 2)
    kill_all_of(app_id)
    folder = RunFolder.named(app_id)
    if boot == "another":
        record = folder.record()
        owners = {
            name: replace(owner, boot="0000-of-yesterday", pid=1)
            for name in ("guard", "launcher")
            if isinstance(owner := getattr(record, name), ProcessIdentity)
        }
        folder.write_record(replace(record, **owners))
    until(lambda: catalog.record(app_id).reason == "launcher_lost")  # type: ignore[union-attr]

    scheduler.resume(app_id)
    until(lambda: len(lives(out)) == 4)

    assert sorted(life[2:] for life in lives(out)[2:]) == [["1", "1", "1", "2"]] * 2
    scheduler.stop(app_id, at_once=True)
    assert over(app_id).restarts == 1


def test_ranks_that_outlived_their_launch_are_ended_before_the_run_goes_on(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(SECONDS="60")
    until(lambda: lives(out))
    record = catalog.record(app_id)
    assert record is not None
    rank = record.ranks[0].process
    assert rank is not None
    keeper = int(Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in processes_of(app_id) - {rank.pid, keeper}:  # nobody is left who would end the rank
        with contextlib.suppress(ProcessLookupError):  # it ended with another
            os.kill(pid, signal.SIGKILL)
    until(lambda: processes_of(app_id) == {rank.pid, keeper})
    until(lambda: catalog.record(app_id).is_over())  # type: ignore[union-attr]

    scheduler.resume(app_id)
    until(lambda: len(lives(out)) == 2)

    assert not rank.is_alive()
    scheduler.stop(app_id, at_once=True)
    over(app_id)


def test_of_two_who_resume_at_once_one_is_refused_in_words(
    out: Path, run: Callable[..., str]
) -> None:
    app_id = run(SECONDS="0")
    over(app_id)
    code = "import sys; from torchloom.schedulers.local_scheduler import create_scheduler\n"
    code += "create_scheduler('torchx').resume(sys.argv[1])"

    both = [
        subprocess.Popen([sys.executable, "-c", code, app_id], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [each.communicate(timeout=60)[1] for each in both]
    over(app_id)

    codes = sorted(each.returncode for each in both)
    refused = [words for each, words in zip(both, said, strict=True) if each.returncode]
    if codes == [0, 0]:  # the second came when the first had ended: then it is a third life
        assert [life[2] for life in lives(out)] == ["0", "1", "2"]
    else:
        assert codes == [0, 1]
        assert any(words in refused[0] for words in ("being resumed", "nothing to resume"))
        assert [life[2] for life in lives(out)] == ["0", "1"]
    assert not list(RunFolder.named(app_id).path.parent.glob(".new-*"))


def test_who_claims_a_run_that_goes_on_already_is_refused(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(SECONDS="0")
    over(app_id)
    stale = scheduler.resume_dryrun(app_id)
    request = RunFolder.named(app_id).path / "request.json"
    request.write_text(request.read_text().replace('"SECONDS": "0"', '"SECONDS": "60"'))
    scheduler.resume(app_id)
    until(lambda: len(lives(out)) == 2)

    with pytest.raises(LoomError, match=f"{app_id} is RUNNING: nothing to resume"):
        scheduler.resume(app_id)
    with pytest.raises(LoomError, match=r"nothing to resume|being resumed"):
        scheduler.start(stale)

    scheduler.stop(app_id, at_once=True)
    over(app_id)


def test_four_ranks_go_on_as_two(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(ranks=4, SECONDS="60")
    until(lambda: len(lives(out)) == 4)
    scheduler.stop(app_id)
    assert over(app_id).state is AppState.CANCELLED
    request = RunFolder.named(app_id).path / "request.json"
    request.write_text(request.read_text().replace('"SECONDS": "60"', '"SECONDS": "0"'))

    scheduler.resume(app_id, resumption.Continuation(ranks=2))

    record = over(app_id)
    assert (record.state, len(record.ranks)) == (AppState.SUCCEEDED, 2)
    again = sorted((life[0], life[2], life[5]) for life in lives(out)[4:])
    assert again == [("0", "1", "2"), ("1", "1", "2")]


def test_a_run_goes_on_from_the_step_that_was_chosen_and_newer_ones_are_set_aside(
    out: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(SECONDS="0")
    over(app_id)
    root = RunFolder.named(app_id).path / "checkpoints"
    chosen, later = commit(root, 10), commit(root, 20)

    scheduler.resume(app_id, resumption.Continuation(step=10))
    over(app_id)

    assert lives(out)[-1][4] == chosen
    assert not Path(later).exists()
    assert Path(f"{later}.bad").exists()


def test_what_is_gone_is_named_instead_of_being_run(
    script: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(SECONDS="0")
    over(app_id)
    script.unlink()

    with pytest.raises(
        resumption.NotResumable, match=r"the script it ran no longer exists: .*note\.py"
    ):
        scheduler.resume(app_id)
    with pytest.raises(resumption.NotResumable, match="there is no run nobody"):
        scheduler.resume("nobody")


def test_a_life_that_nobody_agrees_to_leaves_the_run_as_it_was(
    home: Path, run: Callable[..., str], scheduler: LocalScheduler
) -> None:
    app_id = run(SECONDS="0")
    before = over(app_id)
    folder = RunFolder.named(app_id)
    words = {name: (folder.path / name).read_bytes() for name in ("app.json", "request.json")}
    request = resumption.going_on(app_id)
    fresh = resumption.first_record(before, before)
    new = RunFolder.create(request, folder.app(), fresh)

    resumption.take_over(new, fresh)
    assert catalog.record(app_id).restarts == 1  # type: ignore[union-attr]
    resumption.give_back(folder, fresh)

    assert catalog.record(app_id) == before
    assert {name: (folder.path / name).read_bytes() for name in words} == words
