"""Jobs that go on after their end: through the queue, with and without the plane that knew them."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom import settings
from torchloom.client import plane as door
from torchloom.errors import LoomError
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder

from ..harness.home import processes_of, until
from ..harness.plane_jobs import LOOM, Plane, loom

pytestmark = pytest.mark.process
LONG = 180.0  # seconds, for loaded machines
ANEW = {"from_scratch": True, "until": 1}  # for jobs that save nothing, complete or not
Submit = Callable[..., dict[str, Any]]
Starts = Callable[[], list[tuple[str, int]]]


def state_of(job: str) -> str:
    return str(door.ask("job", job=job)["state"])


def seconds(job: str, text: str) -> None:
    """Have the next life of a run that did not come through the queue last so long."""
    request = RunFolder.named(job).path / "request.json"
    request.write_text(request.read_text().replace('"SECONDS": "60.0"', f'"SECONDS": "{text}"'))


def moves(job: str) -> list[tuple[str, str, str]]:
    found = door.ask("events", job=job, limit=1000)["items"]
    changes = [event for event in found if event["kind"] == "job_state"]
    return [(e["facts"]["before"], e["facts"]["after"], e["reason"]) for e in changes]


def kill_all_of(job: str) -> None:
    while pids := processes_of(job):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_job_of_the_queue_goes_through_it_again_and_is_one_attempt_more(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(workers=2)["id"]
    until(lambda: state_of(job) == "COMPLETED", LONG)

    answer = door.ask("resume", job=job, workers=1, author="ann", reason="once more", **ANEW)
    until(lambda: state_of(job) == "COMPLETED" and len(starts()) == 3, LONG)

    assert (answer["kind"], answer["before"], answer["payload"]) == (
        *("resume", "COMPLETED"),
        {"attempt": 2},
    )
    assert (sorted(starts()[:2]), starts()[2:]) == ([(job, 0), (job, 1)], [(job, 0)])
    shown = door.ask("job", job=job)
    assert (shown["attempt"], shown["world_size"]) == (2, 1)
    assert moves(job)[-3:] == [
        ("COMPLETED", "QUEUED", "resumed_by_ann"),
        ("QUEUED", "RUNNING", "placed"),
        ("RUNNING", "COMPLETED", "ranks_ended"),
    ]
    with plane.database("state") as base:
        assert base.execute("SELECT * FROM placements").fetchall() == []


def test_of_many_who_resume_a_job_at_once_one_does(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(seconds=60)["id"]
    until(lambda: starts(), LONG)
    loom("stop", job)
    until(lambda: state_of(job) == "CANCELLED", LONG)
    said: list[str] = []

    def resume() -> None:
        try:
            door.ask("resume", job=job, from_scratch=True)
            said.append("")
        except LoomError as error:
            said.append(str(error))

    threads = [threading.Thread(target=resume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    until(lambda: len(starts()) == 2, LONG)

    assert sorted(map(bool, said)) == [False, True, True, True]
    assert all("nothing to resume" in words for words in said if words)
    assert state_of(job) == "RUNNING"
    with pytest.raises(LoomError, match=f"{job} is RUNNING: nothing to resume"):
        door.ask("resume", job=job)
    loom("stop", "--now", job)


def test_a_job_goes_on_after_everything_of_it_and_of_the_plane_was_killed(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(workers=2, seconds=60)["id"]
    until(lambda: len(starts()) == 2, LONG)
    for name in ("weaver", "agent", "server", "nats"):
        with contextlib.suppress(LookupError, KeyError):
            plane.kill(name)
    kill_all_of(job)
    loom("down")
    loom("up")
    until(lambda: state_of(job) == "FAILED" and door.ask("cluster")["nodes"], LONG)

    loom("resume", "-d", "--from-scratch", job)
    until(lambda: len(starts()) == 4, LONG)

    until(lambda: state_of(job) == "RUNNING", LONG)
    assert door.ask("job", job=job)["attempt"] == 2
    loom("stop", "--now", job)


def test_a_run_of_which_no_plane_knows_goes_on_and_becomes_known(
    plane: Plane, folder: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_PLANE", "0")
    env = ("-e", f"STARTS={folder / 'starts'}", "-e", "SECONDS=60.0")
    loom("run", "-d", "-n", "2", *env, "note.py")
    until(lambda: len(starts()) == 2, LONG)
    job = starts()[0][0]
    kill_all_of(job)
    until(lambda: catalog.record(job).is_over())  # type: ignore[union-attr]
    monkeypatch.delenv("LOOM_PLANE")

    loom("resume", "-d", "--from-scratch", "-n", "3", job)
    until(lambda: len(starts()) == 5, LONG)

    until(lambda: state_of(job) == "RUNNING", LONG)
    assert door.ask("job", job=job)["attempt"] == 2
    loom("stop", "--now", job)


def test_who_lifts_a_pause_of_a_job_that_has_ended_meanwhile_starts_nothing(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(seconds=60)["id"]
    until(lambda: starts(), LONG)
    loom("stop", "--now", job)
    until(lambda: state_of(job) == "CANCELLED", LONG)

    with pytest.raises(LoomError, match=f"{job} is CANCELLED: it is no longer paused") as over:
        door.ask("resume", job=job, unpause=True, from_scratch=True)
    with pytest.raises(LoomError, match=f"{job} has no checkpoint to resume from") as bare:
        door.ask("resume", job=job)

    assert (over.value.code, bare.value.code) == ("ended_meanwhile", "no_checkpoint")
    assert (state_of(job), len(starts())) == ("CANCELLED", 1)
    assert door.ask("job", job=job)["attempt"] == 1


def test_a_launched_run_is_resumed_by_the_plane_too(
    plane: Plane, folder: Path, starts: Starts
) -> None:
    env = ("-e", f"STARTS={folder / 'starts'}", "-e", "SECONDS=60.0")
    loom("run", "-d", "-n", "2", *env, "note.py")
    until(lambda: len(starts()) == 2, LONG)
    job = starts()[0][0]
    loom("stop", "--now", job)
    until(lambda: state_of(job) == "CANCELLED", LONG)
    seconds(job, "0")

    door.ask("resume", job=job, from_scratch=True)
    until(lambda: state_of(job) == "COMPLETED", LONG)

    assert door.ask("job", job=job)["attempt"] == 2
    assert len(starts()) == 4
    assert [move[:2] for move in moves(job)] == [
        ("RUNNING", "CANCELLED"),
        ("CANCELLED", "QUEUED"),
        ("QUEUED", "RUNNING"),
        ("RUNNING", "COMPLETED"),
    ]


def test_what_a_run_did_while_no_plane_was_up_is_known_to_the_next(
    plane: Plane, folder: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = ("-e", f"STARTS={folder / 'starts'}", "-e", "SECONDS=60.0")
    loom("run", "-d", "-n", "1", *env, "note.py")
    until(lambda: starts(), LONG)
    job = starts()[0][0]
    loom("stop", "--now", job)
    until(lambda: state_of(job) == "CANCELLED", LONG)
    loom("down")
    seconds(job, "0")
    monkeypatch.setenv("LOOM_PLANE", "0")
    loom("resume", "--from-scratch", job)
    monkeypatch.delenv("LOOM_PLANE")

    loom("up")

    until(lambda: state_of(job) == "COMPLETED", LONG)
    assert door.ask("job", job=job)["attempt"] == 2


def test_a_job_whose_script_is_gone_is_refused_in_words_and_stays_what_it_was(
    plane: Plane, folder: Path, submit: Submit
) -> None:
    job = submit()["id"]
    until(lambda: state_of(job) == "COMPLETED", LONG)
    (folder / "work" / "note.py").unlink()

    words = [LOOM, "resume", "--from-scratch", "--until", "1", job]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONG)

    assert done.returncode == 2
    assert "the script it ran no longer exists" in done.stderr
    assert state_of(job) == "COMPLETED"


TRAIN = """
import os, time
import torch, torch.distributed as dist
import torchloom as loom
dist.init_process_group("gloo")
run = loom.init()
model = run.wrap(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.track(optimizer=optimizer)
for step in run.steps(int(os.environ["STEPS"])):
    with step:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    with open(os.environ["LEDGER"] + os.environ["RANK"], "a") as file:
        file.write(f"{os.environ['LOOM_GENERATION']} {step.number}\\n")
"""


def ledger(folder: Path, rank: int = 0) -> list[tuple[int, int]]:
    """Return each step that a rank did, with its generation, by its own word."""
    path = folder / f"ledger-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        (int(line.split()[0]), int(line.split()[1])) for line in lines if len(line.split()) == 2
    ]


@pytest.fixture
def train(plane: Plane, folder: Path) -> Callable[..., str]:
    """Submit a training of two workers that saves every ten steps."""
    (folder / "work" / "train.py").write_text(TRAIN)

    def submit(steps: int, **more: Any) -> str:
        env = {"LEDGER": str(folder / "ledger-"), "STEPS": str(steps)}
        spec = {"name": "train", "script": "train.py", "env": env, "resources": {"workers": 2}}
        saving = {"checkpointing": {"enabled": True, "every_n_steps": 10}}
        asked = {**spec, **saving, **more}
        return str(door.ask("submit", spec=asked, cwd=os.getcwd(), author="test")["id"])

    return submit


@pytest.mark.needs("torch")
def test_a_complete_job_is_extended_and_only_to_where_that_was_said(
    train: Callable[..., str], folder: Path
) -> None:
    job = train(steps=15)
    until(lambda: state_of(job) == "COMPLETED", LONG)
    with pytest.raises(LoomError, match=f"{job} is COMPLETED: nothing is left") as refused:
        door.ask("resume", job=job)

    loom("resume", "--until", "22", job)

    assert refused.value.code == "already_complete"
    assert [step for _, step in ledger(folder)] == list(range(22))
    until(lambda: state_of(job) == "COMPLETED", LONG)
    shown = json.loads(loom("checkpoint", "ls", job, "--json"))
    assert shown[0]["step"] == 22
    with pytest.raises(LoomError, match="--until 22 leaves nothing to train"):
        door.ask("resume", job=job, until=22)


@pytest.mark.needs("torch")
def test_a_released_job_gives_its_places_back_and_goes_on_at_the_step_it_left(
    train: Callable[..., str], folder: Path, plane: Plane
) -> None:
    job = train(steps=150)
    until(lambda: len(ledger(folder)) > 12, LONG)

    loom("pause", "--release", job)
    shown = door.ask("job", job=job)
    left = max(step for _, step in ledger(folder)) + 1
    with plane.database("state") as base:
        places = base.execute("SELECT * FROM placements").fetchall()
    again = loom("show", job, "--json")
    loom("resume", job)

    assert (shown["state"], shown["reason"], places) == ("PAUSED", "released", [])
    assert '"state": "PAUSED"' in again
    assert (1, left) in ledger(folder)
    assert [step for _, step in ledger(folder)] == list(range(150)), "a step twice, or none"
    until(lambda: state_of(job) == "COMPLETED", LONG)
    assert ("PAUSED", "QUEUED") in [move[:2] for move in moves(job)]


@pytest.mark.needs("torch")
def test_a_job_is_paused_only_when_the_checkpoint_it_was_released_with_is_committed(
    train: Callable[..., str], folder: Path, plane: Plane
) -> None:
    job = train(steps=150)
    until(lambda: len(ledger(folder)) > 12, LONG)
    root = Path(catalog.record(job).checkpoints)
    root.mkdir(parents=True, exist_ok=True)

    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nothing can be committed
        words = [LOOM, "pause", "--release", job]
        pausing = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        until(lambda: any(one[1] == "committing" for one in saved(plane, job)), LONG)
        until(lambda: not processes_of(job), LONG)
        before = state_of(job)
    said, _ = pausing.communicate(timeout=LONG)
    shown, rows = door.ask("job", job=job), saved(plane, job)
    loom("resume", job)
    until(lambda: state_of(job) == "COMPLETED", LONG)

    (last,) = [step for step, state in rows[-1:] if state == "committed"]
    assert (before, shown["state"], shown["reason"]) == ("RUNNING", "PAUSED", "released")
    assert f"checkpoint of step {last} committed in " in said
    assert [step for _, step in ledger(folder)] == list(range(150)), "a step twice, or none"


def saved(plane: Plane, job: str) -> list[tuple[int, str]]:
    """Return the step and the state of each checkpoint, by the database."""
    with plane.database("state") as base:
        query = "SELECT step, state FROM checkpoints WHERE job = ? ORDER BY step"
        return [tuple(row) for row in base.execute(query, (job,)).fetchall()]


@pytest.mark.needs("torch")
def test_a_released_job_that_is_stopped_is_cancelled_and_said_so(
    train: Callable[..., str], folder: Path
) -> None:
    job = train(steps=5000)
    until(lambda: len(ledger(folder)) > 12, LONG)
    loom("pause", "--release", job)

    listed = loom("ls", "--state", "paused", "--json")
    at_a_step = subprocess.run([LOOM, "stop", job, "--at", "9"], capture_output=True, text=True)
    said = loom("stop", "--reason", "enough")
    again = loom("stop", job)
    shown = loom("show", job, "--json")

    assert [one["id"] for one in json.loads(listed)] == [job]
    assert (at_a_step.returncode, at_a_step.stdout) == (2, "")
    assert f"{job} has no ranks that could reach a step" in at_a_step.stderr
    assert (said, again) == (
        f"{job} was released: CANCELLED\n",
        f"{job} had already ended: CANCELLED\n",
    )
    assert [json.loads(shown)[name] for name in ("state", "reason")] == ["CANCELLED", "enough"]
    assert moves(job)[-1] == ("PAUSED", "CANCELLED", "enough")


def test_a_job_that_is_stopped_before_its_next_life_has_begun_has_none(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit()["id"]
    until(lambda: state_of(job) == "COMPLETED", LONG)
    other = submit(workers=4, seconds=60)["id"]
    until(lambda: len(starts()) == 5, LONG)
    door.ask("resume", job=job, **ANEW)

    listed = loom("ls", "--state", "queued", "--json")
    said = loom("stop", job)

    assert [one["id"] for one in json.loads(listed)] == [job]
    assert said == f"{job} CANCELLED\n"
    assert state_of(job) == "CANCELLED"
    assert json.loads(loom("show", job, "--json"))["state"] == "CANCELLED"
    loom("stop", "--now", other)
    assert len(starts()) == 5


def test_a_job_that_is_stopped_while_its_next_life_begins_does_not_live_on(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(seconds=60)["id"]
    until(lambda: len(starts()) == 1, LONG)
    loom("stop", "--now", job)
    until(lambda: state_of(job) == "CANCELLED", LONG)

    door.ask("resume", job=job, from_scratch=True)
    said = loom("stop", "--now", job)

    assert said == f"{job} CANCELLED\n"
    assert state_of(job) == "CANCELLED"
    until(lambda: not processes_of(job), LONG)


@pytest.mark.needs("torch")
def test_a_job_that_is_stopped_saves_first_and_goes_on_from_there_with_fewer(
    train: Callable[..., str], folder: Path
) -> None:
    job = train(steps=150)
    until(lambda: len(ledger(folder)) > 12, LONG)

    loom("stop", job)
    stopped = catalog.record(job)
    left = max(step for _, step in ledger(folder)) + 1
    loom("resume", "-n", "1", job)

    assert stopped is not None
    assert (stopped.state.name, stopped.reason) == ("CANCELLED", "cancelled_by_user")
    assert [step for _, step in ledger(folder)] == list(range(150)), "a step twice, or none"
    assert [life for life, step in ledger(folder) if step >= left] == [1] * (150 - left)
    assert max(step for _, step in ledger(folder, 1)) == left - 1, "the second worker went on"


@pytest.mark.needs("torch")
def test_a_job_is_resized_at_one_step_and_goes_on_at_it_with_as_many_as_were_wanted(
    train: Callable[..., str], folder: Path
) -> None:
    job = train(steps=200)
    until(lambda: len(ledger(folder)) > 12, LONG)

    said = json.loads(loom("resize", job, "1", "--reason", "others need it", "--json"))
    until(lambda: (1, said["effective_step"]) in ledger(folder), LONG)
    alone = catalog.record(job)
    door.ask("resize", None, job=job, workers=2, author="ann")
    until(lambda: state_of(job) == "COMPLETED", LONG)

    first, other = said["effective_step"], min(s for life, s in ledger(folder) if life == 2)
    assert (said["kind"], said["payload"]) == ("resize", {"release": True, "workers": 1})
    assert alone is not None
    assert len(alone.ranks) == 1
    assert [step for _, step in ledger(folder)] == list(range(200)), "a step twice, or none"
    assert [step for _, step in ledger(folder, 1)] == [*range(first), *range(other, 200)]
    assert door.ask("job", job=job)["attempt"] == 3
    asked = door.ask("audit", job=job)
    assert [one["kind"] for one in asked] == ["resize", "resize"]


@pytest.mark.needs("torch")
def test_a_job_is_resized_by_the_next_weaver_if_this_one_dies_first(
    train: Callable[..., str], folder: Path, plane: Plane
) -> None:
    job = train(steps=1_000_000)
    until(lambda: len(ledger(folder)) > 12, LONG)
    door.ask("resize", None, job=job, workers=1, at=600, wait=0)

    plane.kill("weaver")
    until(lambda: any(life == 1 for life, _ in ledger(folder)), LONG)

    other = [step for _, step in ledger(folder, 1)]
    steps = [step for _, step in ledger(folder)][: len(other) + 1]
    assert len(other) >= 600, "it was not to be before that step"
    assert other == list(range(len(other)))
    assert steps == list(range(len(other) + 1)), "a step twice, or none"
    assert (1, len(other)) in ledger(folder)
    loom("stop", "--now", job)


def test_a_job_that_could_not_go_on_with_other_ranks_keeps_those_it_has(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(workers=2, seconds=60)["id"]
    until(lambda: len(starts()) == 2, LONG)

    done = subprocess.run([LOOM, "resize", job, "1"], capture_output=True, text=True)
    odd = subprocess.run([LOOM, "resize", job], capture_output=True, text=True)

    assert (done.returncode, odd.returncode) == (2, 2)
    assert f"{job} keeps its ranks: others would have nothing to resume from" in done.stderr
    assert "give the number of ranks: loom resize [JOB] N" in odd.stderr
    assert state_of(job) == "RUNNING"
    assert len(starts()) == 2
    loom("stop", "--now", job)


@pytest.mark.needs("torch")
def test_a_killed_rank_is_a_recovery_with_its_reason_and_then_the_job_runs(
    train: Callable[..., str], folder: Path
) -> None:
    job = train(steps=120, recovery={"policy": "restart"})
    until(lambda: len(ledger(folder)) > 22, LONG)
    rank = catalog.record(job).ranks[1].process  # type: ignore[union-attr]

    os.kill(rank.pid, signal.SIGKILL)  # type: ignore[union-attr]
    until(lambda: state_of(job) == "COMPLETED", LONG)

    reason = "exit_signal_9_rank_1"
    assert ("RUNNING", "RECOVERING", reason) in moves(job)
    assert ("RECOVERING", "RUNNING", "ranks_started") in moves(job)
    found = door.ask("events", job=job, limit=1000)["items"]
    (resuming,) = [event["facts"] for event in found if event["kind"] == "resuming"]
    first = min(step for life, step in ledger(folder) if life == 1)
    assert (resuming["step"], resuming["reason"]) == (first, reason)
    assert first > 0
    facts = door.ask("job", job=job)["facts"]
    assert facts["checkpoints"] == str(RunFolder.named(job).path / "checkpoints")


def left_of(plane: Plane, job: str) -> dict[str, int]:
    """Return how many rows of a job each table of the plane has, by sqlite3 alone."""
    found: dict[str, int] = {}
    for part in ("state", "records"):
        with plane.database(part) as base:
            for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                names = [column[1] for column in base.execute(f"PRAGMA table_info({table})")]
                column = "job" if "job" in names else "id" if table == "jobs" else ""
                if column:
                    query = f"SELECT count(*) FROM {table} WHERE {column} = ?"
                    found[f"{part}.{table}"] = base.execute(query, (job,)).fetchone()[0]
    return {table: rows for table, rows in found.items() if rows}


@pytest.mark.needs("torch")
def test_of_a_job_that_is_removed_the_plane_keeps_nothing_but_that_it_was(
    train: Callable[..., str], folder: Path, plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = train(steps=5000)
    until(lambda: len(ledger(folder)) > 12, LONG)
    loom("pause", "--release", job)
    refused = subprocess.run([LOOM, "rm", job], capture_output=True, text=True)
    loom("rm", "--ended", "-y")
    before = left_of(plane, job)
    loom("stop", job)

    said = loom("rm", job)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{job} is PAUSED; stop it first: `loom stop {job}`" in refused.stderr
    assert before.keys() >= {"state.checkpoints", "state.jobs", "state.submissions", "state.events"}
    assert said == f"{job} removed\n"
    assert left_of(plane, job) == {}
    assert not RunFolder.named(job).path.exists()
    events = door.ask("events", limit=1000)["items"]
    (gone,) = [event for event in events if event["kind"] == "run_removed"]
    assert (gone["facts"]["job"], gone["author"]) == (job, settings.user_name())
    with pytest.raises(LoomError, match="no job"):
        door.ask("job", job=job)


def test_jobs_are_removed_that_ended_just_now_or_never_ran(
    plane: Plane, submit: Submit, starts: Starts
) -> None:
    job = submit(workers=4, seconds=60)["id"]
    until(lambda: len(starts()) == 4, LONG)
    waiting = submit(workers=4)["id"]
    loom("stop", waiting)
    loom("stop", "--now", job)

    said = loom("rm", job, waiting)

    assert said == f"{job} removed\n{waiting} removed\n"
    assert (left_of(plane, job), left_of(plane, waiting)) == ({}, {})
