import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.launch.keeper import fingerprint, zygote_client
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.unix import receive_message, send_message

from ...harness.home import allowed, until

PATIENCE = 120.0


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test zygotes of its own, and send them away afterwards."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "loom"))
    yield tmp_path / "torchloom"
    zygote_client.leave_all()


def _find(*words: str, **env: str) -> zygote_client.ZygoteClient | zygote_client.Cold:
    basic = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ
    }
    return zygote_client.find(PythonCommand.parse(words), {**basic, **env}, os.sep)


def _living(key: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"zygote-{key}.sock".encode() in _words(entry):
                found.append(int(entry.name))
    return found


def _words(process: Path) -> bytes:
    return (process / "cmdline").read_bytes()


def test_what_cannot_be_warm_says_why(runtime: Path) -> None:
    found = [
        _find("bash", "-c", "true"),
        _find(sys.executable, "x.py", LOOM_WARM="0"),
        _find(sys.executable, "-v", "x.py"),
        _find(sys.executable, "x.py", PYTHONPROFILEIMPORTTIME="1"),
        _find("/not/here/python", "x.py"),
    ]

    assert found == [
        zygote_client.Cold("not a Python program"),
        zygote_client.Cold("LOOM_WARM=0"),
        zygote_client.Cold("-v prints while modules are imported"),
        zygote_client.Cold("PYTHONPROFILEIMPORTTIME is set: imports are timed"),
        zygote_client.Cold("there is no /not/here/python"),
    ]


@pytest.mark.process
def test_an_interpreter_without_torch_stays_cold_and_is_asked_once(
    runtime: Path, tmp_path: Path
) -> None:
    interpreter = tmp_path / "venv" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(interpreter.parents[1])], check=True
    )

    first = _find(str(interpreter), "x.py", PYTHONPATH="")
    probes = {path: path.stat().st_mtime_ns for path in runtime.glob("probe-*")}
    second = _find(str(interpreter), "x.py", PYTHONPATH="")

    assert (
        first
        == second
        == zygote_client.Cold(f"{interpreter} has no torch, torchloom, threadpoolctl")
    )
    assert {path: path.stat().st_mtime_ns for path in runtime.glob("probe-*")} == probes


@pytest.mark.process
def test_a_package_installed_later_is_noticed(runtime: Path, tmp_path: Path) -> None:
    interpreter = tmp_path / "venv" / "bin" / "python"
    venv = [sys.executable, "-m", "venv", "--without-pip", str(interpreter.parents[1])]
    subprocess.run(venv, check=True)
    before = fingerprint.probe(str(interpreter), (), {}).missing

    packages = next(interpreter.parents[1].glob("lib/python*/site-packages"))
    (packages / "torch.py").write_text("")
    after = fingerprint.probe(str(interpreter), (), {}).missing

    assert (before, after) == (fingerprint.NEEDED, ("torchloom", "threadpoolctl"))


def test_a_relative_interpreter_is_meant_from_the_folder_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    path = {"PATH": f"{tmp_path}/bin:/bin"}

    assert fingerprint.locate("bin/python", {}, str(tmp_path)) == str(tmp_path / "bin" / "python")
    assert fingerprint.locate("python", path, os.sep) == str(tmp_path / "bin" / "python")
    assert fingerprint.locate("bin/python", path, os.sep) is None


@pytest.mark.process
@pytest.mark.needs("torch")
def test_ten_starters_start_one_zygote_which_leaves_when_it_is_told(runtime: Path) -> None:
    zygote = _find(sys.executable, "x.py")
    assert isinstance(zygote, zygote_client.ZygoteClient)
    start = (
        "import os, sys; from torchloom.launch.keeper import zygote_client as warm;"
        "from torchloom.launch.keeper.python_command import PythonCommand;"
        "warm.ZygoteClient(sys.argv[1], tuple(sys.argv[2:]), dict(os.environ)).start()"
    )
    words = [sys.executable, "-c", start, zygote.key, *zygote.words]
    env = {**os.environ, **zygote.env}

    starters = [subprocess.Popen(words, env=env) for _ in range(10)]
    codes = [starter.wait(PATIENCE) for starter in starters]

    assert codes == [0] * 10
    assert zygote.ready(PATIENCE), zygote.log.read_text()
    assert len(_living(zygote.key)) == 1
    assert zygote.address.stat().st_mode & 0o077 == 0
    assert runtime.stat().st_mode & 0o077 == 0
    zygote.leave()
    until(lambda: not _living(zygote.key))
    assert not zygote.address.exists()
    assert zygote.connect() is None


@pytest.mark.process
@pytest.mark.needs("torch")
def test_a_zygote_without_use_leaves_by_itself(runtime: Path) -> None:
    zygote = _find(sys.executable, "x.py", LOOM_WARM_IDLE="0.5")
    assert isinstance(zygote, zygote_client.ZygoteClient)

    zygote.start()

    assert zygote.ready(PATIENCE), zygote.log.read_text()
    for misfit in ({"do": "keep"}, {"do": "keep", "argv": 1, "env": 2, "cwd": 3}):
        channel = zygote.connect()
        assert channel is not None
        with channel:
            send_message(channel, misfit)
            assert receive_message(channel) is None  # it hung up
    until(lambda: not _living(zygote.key))
    assert not zygote.ready(1.0)
    assert zygote.log.read_text() == ""


@pytest.mark.process
def test_a_zygote_that_could_not_live_is_not_tried_again_and_again(runtime: Path) -> None:
    broken = zygote_client.ZygoteClient(
        "broken", (sys.executable, "-m", "torchloom.worker.process.zygote"), {}
    )
    runtime.mkdir(exist_ok=True)
    zygote_client.excuse_path(broken.address).write_text("torch is broken")

    broken.start()

    assert not broken.log.exists()
    assert broken.keeper({}) == zygote_client.Cold("torch is broken")


def test_the_key_is_found_in_a_few_milliseconds(runtime: Path) -> None:
    _find(sys.executable, "x.py")
    taken = []

    for _ in range(10):
        began = time.perf_counter()
        _find(sys.executable, "x.py")
        taken.append(time.perf_counter() - began)

    assert min(taken) < allowed(0.01)
    assert fingerprint.surroundings() == fingerprint.surroundings()


def test_an_interpreter_is_asked_once_whatever_is_on_path(tmp_path: Path, runtime: Path) -> None:
    asked, interpreter = tmp_path / "asked", tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\necho >> {asked}\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o700)

    found = [
        fingerprint.probe(str(interpreter), (), {"PATH": f"/bin:{tmp_path / name}"})
        for name in "ab"
    ]

    assert found[0] == found[1]
    assert asked.read_text() == "\n"
