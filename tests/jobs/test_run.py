"""`loom run job.yaml`: through the queue, followed to the end, listed and stopped before."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as door

from ..harness.home import until
from ..harness.plane_jobs import LOOM, PATIENCE, Plane, loom

pytestmark = pytest.mark.process


@pytest.fixture
def slots() -> int:
    return 2


@pytest.fixture
def job(folder: Path) -> Callable[..., str]:
    """Write a file of a job that notes its starts; return its name."""

    def write(workers: int = 1, seconds: float = 0, **more: Any) -> str:
        env = {"STARTS": str(folder / "starts"), "SECONDS": str(seconds)}
        spec = {"name": "note", "script": "note.py", "env": env, "resources": {"workers": workers}}
        Path("job.json").write_text(json.dumps({**spec, **more}))
        return "job.json"

    return write


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([LOOM, "run", *words], capture_output=True, text=True, timeout=PATIENCE)


def test_a_job_is_followed_through_the_queue_to_its_end(
    plane: Plane, job: Callable[..., str], starts: Callable[[], list[tuple[str, int]]]
) -> None:
    done = run("-e", "GREETING=it costs $5", job(2, script="greet.py"))

    assert done.returncode == 1, "there is no such script"
    assert "no file" in done.stderr

    Path("greet.py").write_text(
        "import os; exec(open('note.py').read()); print(os.environ['GREETING'], flush=True)"
    )
    done = run("-e", "GREETING=it costs $5", job(2, script="greet.py"))

    assert (done.returncode, done.stderr.count("it costs $5\n")) == (0, 2), done
    (name,) = {name for name, _ in starts()}
    found = door.ask("job", job=name)
    assert (found["state"], found["spec"]["script"]) == ("COMPLETED", "greet.py")
    assert "COMPLETED" in done.stderr


def test_a_job_of_the_queue_writes_files_with_the_umask_of_who_started_the_plane(
    plane: Plane, job: Callable[..., str]
) -> None:
    Path("mask.py").write_text("open('made', 'w').close()")

    run(job(script="mask.py"))

    mask = os.umask(0)
    os.umask(mask)
    assert Path("made").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_job_that_waits_is_listed_with_its_reason_shown_and_stopped(
    plane: Plane, job: Callable[..., str], starts: Callable[[], list[tuple[str, int]]]
) -> None:
    first = json.loads(loom("run", "--json", job(2, 60)))
    words = [LOOM, "run", "--json", job(1)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as leader:
        second = json.loads(leader.communicate()[0])
    until(starts, PATIENCE)

    (queued,) = json.loads(loom("ls", "--state", "queued", "--json"))
    shown = loom("show", second["id"])
    spec = json.loads(loom("show", "--spec", "--json", second["id"]))
    logs = subprocess.run([LOOM, "logs", second["id"]], capture_output=True, text=True)
    stopped = loom("stop", second["id"])
    loom("stop", "--now", first["id"])

    why = "waits for room: needs 1 workers, 0 would fit now"
    assert (queued["id"], queued["state"], queued["reason"]) == (second["id"], "QUEUED", why)
    assert f"QUEUED {why}" in shown
    assert (logs.returncode, logs.stdout) == (1, "")
    assert logs.stderr == f"loom: {second['id']} has no logs: it is QUEUED, {why}\n"
    stored = door.ask("job", job=second["id"])
    assert (stored["spec"], stored["facts"]["shell"]["pid"]) == (spec, leader.pid)
    assert stopped == f"{second['id']} CANCELLED\n"
    assert {name for name, _ in starts()} == {first["id"]}


def test_who_breaks_off_while_the_job_waits_takes_it_out_of_the_queue(
    plane: Plane, job: Callable[..., str], starts: Callable[[], list[tuple[str, int]]]
) -> None:
    first = json.loads(loom("run", "--json", job(2, 60)))
    until(starts, PATIENCE)
    words = [LOOM, "run", job(1)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as following:
        until(lambda: door.ask("queue"), PATIENCE)
        assert following.stderr is not None
        said = [following.stderr.readline() for _ in range(3)]
        following.send_signal(signal.SIGTERM)
        code = following.wait(PATIENCE)
    left = door.ask("queue")
    loom("stop", "--now", first["id"])

    assert "/jobs/" in said[1]
    assert "waits for room" in said[2]
    assert (code, left) == (128 + signal.SIGTERM, [])


def test_a_dry_run_asks_nobody(plane: Plane, job: Callable[..., str]) -> None:
    shown = loom("run", "--dryrun", job(2))

    assert "role note: 1 replica of 2 ranks" in shown
    assert door.ask("jobs") == []


def test_ranks_do_not_learn_how_the_plane_reaches_its_bus(
    plane: Plane, job: Callable[..., str]
) -> None:
    Path("look.py").write_text("import os; print(*sorted(os.environ), flush=True)")

    done = run(job(script="look.py"))

    names = set(done.stderr.split())
    assert {"LOOM_JOB", "LOOM_JOB_SPEC", "LOOM_AGENT"} <= names
    assert {"LOOM_NATS", "LOOM_NATS_CREDS", "LOOM_DATABASE"}.isdisjoint(names)
