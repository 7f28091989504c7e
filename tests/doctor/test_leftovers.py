"""What crashes leave: found, ended, removed; nothing of a living run or of another user."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.doctor.checks import HostPlace
from torchloom.doctor.findings import CheckState
from torchloom.doctor.leftovers import Cleaned, clean, find, left
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.records.folder import RunFolder, now
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.request import LaunchRequest
from torchloom.specs.api import AppState

from ..harness.home import until

NOBODY = 65534
# Start a process whose parent is gone at once, and print its number.
ORPHAN = """
import os, subprocess, sys
process = subprocess.Popen(["sleep", "600"], start_new_session=True, env=dict(
    word.split("=", 1) for word in sys.argv[1:]), stdin=-3, stdout=-3, stderr=-3)
print(process.pid)
"""

Run = Callable[..., None]
Start = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Write the record of a run, over or living, into a state folder."""

    def write(app_id: str, over: bool = True, home: Path = tmp_path / "home") -> None:
        monkeypatch.setenv("LOOM_HOME", str(home))
        state = AppState.SUCCEEDED if over else AppState.RUNNING
        keeper = None if over else ProcessIdentity.mine()
        record = RunRecord(app_id, "train", "s", "ada", "h", "/", now(), state, guard=keeper)
        request = LaunchRequest(app_id, "train", "s", "/", "/", ())
        RunFolder.create(request, {}, record).publish()
        monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))

    return write


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[Start]:
    """Start processes that nobody started any more, with just these variables."""
    started: list[ProcessIdentity] = []

    def start(**env: str) -> int:
        known = {"PATH": os.environ["PATH"], "LOOM_HOME": str(tmp_path / "home")} | env
        words = [f"{name}={value}" for name, value in known.items()]
        done = subprocess.run(
            [sys.executable, "-c", ORPHAN, *words], capture_output=True, text=True
        )
        pid = int(done.stdout)
        process = ProcessIdentity.of(pid)
        assert process is not None
        started.append(process)
        until(lambda: _parent(pid) == 1 and _is_sleep(pid))
        return pid

    yield start
    for process in started:
        process.send(signal.SIGKILL)


def _is_sleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def started(words: list[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a child of the test that ends with it, however that ends."""
    with subprocess.Popen(words, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def cleaned(place: HostPlace, app_id: str) -> list[Cleaned]:
    """Clean, and return what was done about one job: this machine may have others' leftovers."""
    return [each for each in clean(place) if each.leftover.job == app_id]


def job(place: Any, app_id: str) -> dict[str, str]:
    """Return what a process of a job has in its environment."""
    path = os.environ["PATH"]
    return {"LOOM_JOB": app_id, "LOOM_HOME": str(place().home), "PATH": path}


def age(path: Path) -> None:
    """Make a thing so old that nobody can still be at work on it."""
    os.utime(path, (0, 0))


@pytest.mark.process
def test_an_orphan_of_a_run_that_is_over_is_found_and_ended(
    run: Run, orphan: Start, place: Any
) -> None:
    run("train-a")
    pid = orphan(LOOM_JOB="train-a")

    (finding,) = left(place())
    done = cleaned(place(), "train-a")

    assert (finding.state, "train-a" in finding.text) == (CheckState.PROBLEM, True)
    assert [(each.leftover.name, each.done) for each in done] == [(f"{pid} sleep 600", True)]
    assert not _lives(pid)


@pytest.mark.process
def test_an_orphan_of_a_run_that_nobody_knows_is_ended(orphan: Start, place: Any) -> None:
    pid = orphan(LOOM_JOB="gone-x")

    list(clean(place()))

    assert not _lives(pid)


@pytest.mark.process
def test_a_process_that_ignores_sigterm_is_killed(run: Run, place: Any) -> None:
    run("train-a")
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    words = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    env = job(place, "train-a")
    with started(words, env=env, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout
        stubborn.stdout.readline()

        list(clean(place()))

        assert stubborn.poll() == -signal.SIGKILL


@pytest.mark.process
@pytest.mark.parametrize("whose", ["this", "another"])
def test_processes_of_a_living_run_survive_whichever_state_folder_it_has(
    whose: str, run: Run, orphan: Start, place: Any, tmp_path: Path
) -> None:
    home = tmp_path / ("home" if whose == "this" else "another")
    run("train-a", over=False, home=home)
    pid = orphan(LOOM_JOB="train-a", LOOM_HOME=str(home))

    assert cleaned(place(), "train-a") == []

    assert _lives(pid)


@pytest.mark.process
def test_processes_survive_as_long_as_an_agent_looks_after_them(orphan: Start, place: Any) -> None:
    rank, agent = orphan(LOOM_JOB="far-1"), orphan(LOOM_AGENT_OF="far-1")

    assert cleaned(place(), "far-1") == []

    assert (_lives(rank), _lives(agent)) == (True, True)


@pytest.mark.process
def test_a_rank_of_an_unknown_run_whose_launcher_lives_is_left_alone(place: Any) -> None:
    with started(["sleep", "600"], env=job(place, "other-hosts-job")) as rank:
        until(lambda: _is_sleep(rank.pid))

        assert cleaned(place(), "other-hosts-job") == []

        assert _lives(rank.pid)


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start another user's process")
def test_another_users_process_is_never_touched(run: Run, place: Any) -> None:
    run("train-a")
    env = job(place, "train-a")
    with started(["sleep", "600"], env=env, user=NOBODY) as theirs:
        until(lambda: _is_sleep(theirs.pid))

        assert cleaned(place(), "train-a") == []

        assert _lives(theirs.pid)


@pytest.mark.process
def test_whoever_asks_is_not_ended_by_its_own_question(run: Run, place: Any) -> None:
    run("train-a")
    code = (
        "from pathlib import Path; from torchloom.doctor.checks import HostPlace as Place\n"
        "from torchloom.doctor.leftovers import find\n"
        f"found = find(Place({{}}, 'h', Path({str(place().home)!r}), Path('/x'), 'u',"
        f" root=Path({str(place().root)!r})))\n"
        "print([each for each in found if each.job == 'train-a'])"
    )
    env = {**os.environ, **job(place, "train-a")}

    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_half_made_folders_are_left_as_long_as_somebody_may_be_at_work(place: Any) -> None:
    runs = place().home / "runs"
    for name in (".new-old", ".rm-old", ".new-young", "whole"):
        (runs / name).mkdir(parents=True)
    for name in (".new-old", ".rm-old", "whole"):
        age(runs / name)

    done = [each for each in clean(place()) if each.leftover.path]

    assert [each.leftover.name for each in done] == [f"{runs}/.new-old", f"{runs}/.rm-old"]
    assert sorted(path.name for path in runs.iterdir()) == [".new-young", "whole"]


def test_sockets_that_nobody_answers_are_removed_and_others_stay(place: Any) -> None:
    runtime = place().runtime
    (runtime / "keepers").mkdir(parents=True, mode=0o700)
    listeners = []
    for name in ("dead", "keepers/dead", "living", "young"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(runtime / name))
        listener.listen()
        listeners.append(listener)
    for listener in (listeners[0], listeners[1], listeners[3]):
        listener.close()
    for name in ("dead", "keepers/dead", "living"):
        age(runtime / name)
    (runtime / "record.json").write_text("{}")
    age(runtime / "record.json")

    removed = [each.leftover.name for each in clean(place()) if each.leftover.path]

    listeners[2].close()
    assert removed == [f"{runtime}/dead", f"{runtime}/keepers/dead"]
    left_there = sorted(path.name for path in runtime.rglob("*"))
    assert left_there == ["keepers", "living", "record.json", "young"]


def test_runtime_folders_of_runs_that_are_over_go_and_those_of_nobody_stay(
    run: Run, place: Any
) -> None:
    run("train-a")
    run("train-b", over=False)
    for name in ("train-a", "train-b", "zygotes"):
        (place().runtime / name / "n1").mkdir(parents=True)

    removed = [each.leftover.name for each in clean(place()) if each.leftover.path]

    assert removed == [f"{place().runtime}/train-a"]


def test_shared_memory_of_runs_that_are_over_goes(run: Run, place: Any) -> None:
    run("train-a")
    run("train-b", over=False)
    shm, uid = place().shm, os.getuid()
    for name in (f"loom-train-a-{uid}", f"loom-train-b-{uid}", "loom-unknown-young", "torch_1_2"):
        (shm / name).mkdir()
    (shm / "loom-unknown-old").touch()
    age(shm / "loom-unknown-old")
    (shm / "torch_1_2").touch()
    age(shm / "torch_1_2")

    done = [each for each in clean(place()) if each.leftover.path]

    assert [(each.leftover.path, each.leftover.job) for each in done] == [
        (shm / f"loom-train-a-{uid}", "train-a"),
        (shm / "loom-unknown-old", "unknown-old"),
    ]
    names = {path.name for path in shm.iterdir()}
    assert names == {f"loom-train-b-{uid}", "loom-unknown-young", "torch_1_2"}


def test_shared_memory_that_somebody_has_open_stays(place: Any) -> None:
    folder = place().shm / "loom-unknown"
    folder.mkdir()
    with open(folder / "store", "w"):
        age(folder)

        assert folder not in [each.path for each in find(place())]

    assert folder in [each.path for each in find(place())]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_another_users_shared_memory_is_never_touched(run: Run, place: Any) -> None:
    run("train-a")
    folder = place().shm / "loom-train-a"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    age(folder)

    assert cleaned(place(), "train-a") == []

    assert folder.exists()


def test_looking_changes_nothing(run: Run, place: Any) -> None:
    run("train-a")
    (place().shm / "loom-train-a").mkdir()
    before = time.time()

    (finding,) = left(place())

    assert "1 folder" in finding.text
    assert (place().shm / "loom-train-a").stat().st_mtime <= before
