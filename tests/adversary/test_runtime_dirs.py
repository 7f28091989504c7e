"""Shells of one user that disagree about XDG_RUNTIME_DIR: one state folder has one plane."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom import settings

from ..control.conftest import living
from ..harness.fresh_databases import fresh
from ..harness.home import until
from ..harness.plane_jobs import LOOM, PATIENCE

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
HOST = os.uname().nodename
JOB = "name: sleeper\nscript: sleep.py\nresources: {workers: 1}\n"


class Shell:
    """A shell of this user with a runtime folder of its own, or with none."""

    def __init__(self, folder: Path, runtime: str | None) -> None:
        self._cwd = folder / "work"
        names = ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "XDG_RUNTIME_DIR", "LOOMCONFIG")
        env = {name: value for name, value in os.environ.items() if name not in names}
        told = {"HOME": folder / "home", "LOOM_HOME": folder / "loom", "LOOM_DEVICES": "cpu:2"}
        self._env = env | {name: str(value) for name, value in told.items()}
        self._env |= {"TMPDIR": str(folder / "tmp")} | (
            {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([LOOM, *words], cwd=self._cwd, env=self._env, text=True, **pipes)

    def loom(self, *words: str) -> str:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{words}: {err}"
        return out

    def json(self, verb: str, *words: str) -> Any:
        return json.loads(self.loom(verb, "--json", *words))


SLEEP = """
import pathlib, time
pathlib.Path(__file__).with_name("up").touch()
while True: time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Give a test a state folder and places for sockets; nothing of it is left behind."""
    for name in ("home", "loom", "tmp", "a", "b", "c", "work"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "work" / "sleep.py").write_text(SLEEP)
    (tmp_path / "work" / "job.yaml").write_text(JOB)
    fresh(tmp_path / "loom" / "plane")
    yield tmp_path
    shell = Shell(tmp_path, None)
    for job in shell.json("ls", "--state", "running"):  # of a test that failed
        shell.loom("stop", "--now", job["id"])
    shell.loom("down")
    until(lambda: not living(tmp_path), PATIENCE)


def runtimes(folder: Path) -> Mapping[str, str | None]:
    """Return what XDG_RUNTIME_DIR may be: of this user, unset, gone, and of somebody else."""
    foreign = folder / "c"
    if os.getuid() == 0:
        os.chown(foreign, 65534, 65534)
    else:
        foreign.chmod(0o500)
    there = {"another": folder / "b", "gone": folder / "nowhere", "foreign": foreign}
    return {"unset": None, "empty": "", **{name: str(path) for name, path in there.items()}}


def planes(folder: Path) -> list[int]:
    """Return the processes that are planes of a state folder, by their words and environment."""
    found = []
    for pid in living(folder):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [pid] * (b"torchloom.plane" in words)
    return found


@pytest.mark.process
def test_every_shell_finds_the_plane_that_another_one_started(folder: Path) -> None:
    first = Shell(folder, str(folder / "a"))
    first.loom("up")
    pid = first.json("up", "--status")["pid"]
    job = first.json("run", "job.yaml")["id"]

    for name, runtime in runtimes(folder).items():
        shell = Shell(folder, runtime)
        assert shell.json("up", "--status")["pid"] == pid, name
        assert [one["id"] for one in shell.json("ls")] == [job], name
    until(lambda: shell.json("show", job)["job_state"] == "RUNNING", PATIENCE)
    second = shell.json("run", "job.yaml")["id"]
    until(lambda: first.json("show", second)["job_state"] == "RUNNING", PATIENCE)
    first.loom("stop", "--now", second)
    Shell(folder, str(folder / "b")).loom("stop", "--now", job)

    assert planes(folder) == [pid]
    until(lambda: first.json("show", job)["job_state"] == "CANCELLED", PATIENCE)


@pytest.mark.process
def test_of_two_shells_that_start_a_plane_at_once_both_get_the_same(folder: Path) -> None:
    shells = [Shell(folder, str(folder / name)) for name in ("a", "b")]

    started = [shell.start("up") for shell in shells]
    ends = [process.communicate(timeout=PATIENCE) for process in started]

    assert [process.returncode for process in started] == [0, 0], ends
    (pid,) = planes(folder)
    assert [shell.json("up", "--status")["pid"] for shell in shells] == [pid, pid]


@pytest.mark.process
def test_a_plane_started_again_from_another_shell_is_where_running_jobs_look(folder: Path) -> None:
    first, second = (Shell(folder, str(folder / name)) for name in ("a", "b"))
    first.loom("up")
    job = first.json("run", "job.yaml")["id"]
    until((folder / "work" / "up").exists, PATIENCE)  # nothing of its start is under way
    second.loom("down")
    until(lambda: planes(folder) == [], PATIENCE)

    second.loom("up")
    doors = [path.relative_to(folder).parts[0] for path in folder.rglob("weaver.sock")]

    assert len(planes(folder)) == 1
    assert doors == ["a"]
    assert second.json("show", job)["job_state"] == "RUNNING"
    first.loom("stop", "--now", job)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Give a pointer of a state folder, and the folder of sockets that it names."""
    for name in ("run", "elsewhere"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "loom"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    place = tmp_path / "elsewhere" / "torchloom" / settings.plane_dir().name
    place.mkdir(mode=0o700, parents=True)
    place.parent.chmod(0o700)
    pointer = tmp_path / "loom" / "plane" / f"{HOST}.lock"
    pointer.parent.mkdir(parents=True)
    pointer.write_text(f"{HOST}\n{BOOT}\n{place}\n1\n")
    pointer.chmod(0o600)
    return pointer, place


def test_a_pointer_of_this_boot_and_host_is_followed(named: tuple[Path, Path]) -> None:
    assert settings.plane_dir() == named[1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda pointer, place: pointer.write_text(f"{HOST}\nanother-boot\n{place}\n1\n"),
        lambda pointer, place: pointer.write_text(f"other\n{BOOT}\n{place}\n1\n"),
        lambda pointer, place: pointer.write_text(f"{HOST}\n{BOOT}\n"),
        lambda pointer, place: pointer.write_bytes(b"\xff\0\n" * 3),
        lambda pointer, place: pointer.write_text(f"{HOST}\n{BOOT}\n{place.parent}\n1\n"),
        lambda pointer, place: pointer.chmod(0o620),
        lambda pointer, place: place.chmod(0o750),
        lambda pointer, place: place.parent.chmod(0o777),
        lambda pointer, place: place.rmdir(),
        lambda pointer, place: _link(pointer),
        lambda pointer, place: _link(place),
    ],
)
def test_a_pointer_that_is_stale_or_not_ours_alone_is_ignored(
    wrong: Any, named: tuple[Path, Path], tmp_path: Path
) -> None:
    wrong(*named)

    assert settings.plane_dir() == tmp_path / "run" / "torchloom" / named[1].name


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("which", [0, 1])
def test_a_pointer_of_another_user_or_into_another_users_folder_is_ignored(
    which: int, named: tuple[Path, Path], tmp_path: Path
) -> None:
    os.chown(named[which], 65534, 65534)

    assert settings.plane_dir() == tmp_path / "run" / "torchloom" / named[1].name


def _link(path: Path) -> None:
    """Put a link to a copy in the place of a file or folder."""
    moved = path.with_name("moved")
    shutil.move(path, moved)
    path.symlink_to(moved)
