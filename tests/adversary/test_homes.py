"""A state folder that cannot be used, and a clock that is wrong: every verb says what it finds."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.cli.verbs import VERBS

from ..harness.faketime import library
from ..harness.plane_jobs import LOOM, PATIENCE

pytestmark = pytest.mark.process

WORDS = {  # of verbs that need some; bench, chaos and test do more than a state folder is for
    "run": ("job.yaml",),
    "launch": ("train.py",),
    "plan": ("job.yaml",),
    "show": ("x",),
    "logs": ("x",),
    "monitor": ("--plain",),
    "set": ("lr=1",),
    "resume": ("x",),
    "resize": ("2",),
    "stop": ("x",),
    "doctor": ("--clean", "--quick"),
    "open": ("--print",),
    "login": ("--forget",),
    "rm": ("--ended", "-y"),
    "compare": ("a", "b"),
    "plot": ("x",),
    "export": ("x", "--json"),
    "inspect": ("x", "audit"),
    "config": ("show",),
    "env": ("save",),
    "completion": ("bash",),
}
VERBS_TRIED = [name for name in VERBS if name not in ("bench", "chaos", "test")]
STARTING = ("up", "run", "open")  # what needs a plane that can write
CLOCKS = ("+3600", "-3600", "@2001-01-01 00:00:00")
WITH_A_PLANE = ("up --status", "ls", "devices", "tokens", "run -d --wait job.yaml", "show @")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("home", "run", "work"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "work" / "train.py").write_text("print('here')\n")
    (tmp_path / "work" / "job.yaml").write_text("name: a\nscript: train.py\n")
    return tmp_path


def loom(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one command line with a state folder that is of no use."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM")}
    env |= {"HOME": f"{folder}/home", "LOOM_HOME": f"{folder}/loom", "LOOM_WARM": "0", **more}
    env["XDG_RUNTIME_DIR"] = f"{folder}/run"
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [LOOM, *words], cwd=folder / "work", env=env, timeout=PATIENCE, check=False, **pipes
    )


def tried(folder: Path, verb: str) -> subprocess.CompletedProcess[str]:
    done = loom(folder, verb, *WORDS.get(verb, ()))
    said = done.stdout + done.stderr
    assert "bug in torchloom" not in said, said
    assert "Traceback" not in said, said
    assert done.returncode in (0, 1, 2), said
    return done


@contextlib.contextmanager
def tmpfs(folder: Path, *options: str) -> Iterator[None]:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", ",".join(("size=64k", *options)), "loom", str(folder)]
    subprocess.run(words, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.needs("mount")
def test_a_state_folder_that_is_read_only_is_named_with_the_remedy(folder: Path) -> None:
    with tmpfs(folder / "loom", "ro"):
        found = {verb: tried(folder, verb) for verb in VERBS_TRIED}

    for verb in (*STARTING, "launch", "env"):
        assert found[verb].returncode == 1, verb
        assert "Read-only file system" in found[verb].stderr, verb
        assert str(folder / "loom") in found[verb].stderr, verb
    assert "set LOOM_HOME to another folder" in found["up"].stderr
    assert [verb for verb in ("ls", "plan", "down", "components") if found[verb].returncode] == []


@pytest.mark.needs("mount")
def test_a_state_folder_without_room_is_named_with_the_remedy(folder: Path) -> None:
    with tmpfs(folder / "loom"):
        with contextlib.suppress(OSError), (folder / "loom" / "filler").open("wb") as file:
            file.write(b"\0" * (1 << 20))
        found = {verb: tried(folder, verb) for verb in (*STARTING, "launch", "ls", "rm", "env")}

    for verb in (*STARTING, "launch", "env"):
        assert found[verb].returncode == 1, verb
        assert "No space left on device" in found[verb].stderr, verb
    assert "set LOOM_HOME to another folder" in found["up"].stderr


@pytest.mark.parametrize("place", ["loom", "loom/plane", "loom/runs"])
def test_a_file_where_a_folder_should_be_is_named(place: str, folder: Path) -> None:
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).touch()

    found = {verb: tried(folder, verb) for verb in ("up", "ls", "show", "rm", "login")}

    assert found["up"].returncode == 1
    assert "Not a directory" in found["up"].stderr
    assert str(folder / place) in found["up"].stderr
    if place != "loom/plane":
        assert (found["ls"].returncode, found["ls"].stdout) == (1, "")
        assert "remove the file that is in the place of a folder" in found["ls"].stderr


@pytest.mark.needs("faketime")
def test_commands_with_another_clock_work_with_a_plane_of_this_one(folder: Path) -> None:
    assert loom(folder, "up").returncode == 0
    told: dict[tuple[str, str], str] = {}
    try:
        for when in CLOCKS:
            faked = {"LD_PRELOAD": library(), "FAKETIME": when}
            found = {verb: loom(folder, *verb.split(), **faked) for verb in WITH_A_PLANE}
            told |= {(when, verb): done.stderr for verb, done in found.items() if done.returncode}
    finally:
        ended = loom(folder, "down", **faked)

    assert (told, ended.returncode) == ({}, 0)
