"""Runs as a runner makes them for the queue: one an id, whoever else tries at the same time."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchloom.errors import LoomError, UserError
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.supervisor.starter import _first_record
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.weaver.jobs.launch import LaunchOrder, RunnerLauncher, RunSeen, Spot, options

from ...harness.home import home, processes_of, until

__all__ = ["home"]
pytestmark = pytest.mark.process
SCRIPT = """
import os, time
with open("starts", "a") as file:
    file.write(os.environ["LOOM_JOB"] + " " + os.environ["RANK"] + "\\n")
while not os.path.exists("end"):
    time.sleep(0.01)
"""


def order(job: str = "job-1", workers: int = 1, **more: object) -> LaunchOrder:
    Path("train.py").write_text(SCRIPT)
    spec = {"name": "job", "script": "train.py", "resources": {"workers": workers}, **more}
    return LaunchOrder(job, spec, (Spot("localhost", workers),), os.getcwd())


def starts() -> list[str]:
    return Path("starts").read_text().splitlines() if Path("starts").exists() else []


def end(job: str = "job-1") -> None:
    Path("end").touch()
    until(lambda: not processes_of(job))


def test_a_run_has_the_id_that_it_was_given_and_cannot_be_made_again(home: Path) -> None:
    launcher = RunnerLauncher()

    launcher.start(order(workers=2))
    until(lambda: len(starts()) == 2)
    with pytest.raises(LoomError):
        launcher.start(order(workers=2))
    seen = launcher.look("job-1")
    end()

    assert seen is RunSeen.BEGUN
    assert sorted(starts()) == ["job-1 0", "job-1 1"]
    assert RunFolder.named("job-1").record().is_over()
    assert [path.name for path in (home / "runs").glob(".new-*")] == []


def test_of_many_that_start_one_job_at_once_one_does(home: Path) -> None:
    launcher, wanted = RunnerLauncher(), order()

    def start(_: int) -> bool:
        try:
            launcher.start(wanted)
        except LoomError:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(start, range(4)))
    until(starts)
    end()

    assert sum(done) == 1
    assert starts() == ["job-1 0"]


def test_what_a_dead_maker_left_is_cleared_and_started(home: Path) -> None:
    launcher, wanted = RunnerLauncher(), order()
    launcher.start(wanted)
    until(starts)
    end()
    request, app = RunFolder.named("job-1").request(), RunFolder.named("job-1").app()
    shutil.rmtree(home / "runs" / "job-1")
    Path("end").unlink()
    Path("starts").unlink()

    RunFolder.create(request, app, _first_record(request))  # its maker died before
    hidden = launcher.look("job-1")
    RunFolder.create(request, app, _first_record(request)).publish()  # or behind that
    shown = launcher.look("job-1")
    launcher.start(wanted)
    until(starts)
    end()

    assert (hidden, shown) == (RunSeen.NOTHING, RunSeen.NOTHING)
    assert starts() == ["job-1 0"]


def test_a_missing_script_is_refused_before_anything_is_made(home: Path) -> None:
    wanted = LaunchOrder(
        "job-1", {"name": "x", "script": "nope.py"}, (Spot("localhost", 1),), "/tmp"
    )

    with pytest.raises(UserError, match=r"no file '/tmp/nope\.py'"):
        RunnerLauncher().start(wanted)

    assert not (home / "runs").exists()


def test_a_running_job_is_ended_at_once(home: Path) -> None:
    launcher = RunnerLauncher()
    launcher.start(order())
    until(starts)

    launcher.stop("job-1", "a mistake")
    until(lambda: not processes_of("job-1"))

    record = RunFolder.named("job-1").record()
    assert (record.state.name, record.reason) == ("CANCELLED", "a mistake")


def test_a_jobs_shares_policy_and_own_options_become_run_options() -> None:
    plain = {
        "name": "x",
        "script": "a.py",
        "resources": {"workers": 3},
        "elastic": {"min": 2, "max": 3},
        "recovery": {"policy": "shrink"},
        "options": {"grace": 3},
    }
    spots = (Spot("n1", 2, ("GPU-1", "GPU-2")), Spot("n2", 1))

    found = options(job_from_dict(plain), LaunchOrder("x-1", plain, spots, "/work"))

    assert found == {
        "grace": 3,
        "policy": "shrink,min=2",
        "id": "x-1",
        "cwd": "/work",
        "hosts": ["n1:2", "n2:1"],
        "devices": ["GPU-1,GPU-2", ""],
    }
