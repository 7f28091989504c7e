"""A `torchrun` that is ours when it comes first, and leads to the real one when it should."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchloom.launch.shim import CHOICE, FOLDER, PYTHON, shimmed

SHIM = Path(FOLDER) / "torchrun"
SYSTEM = "/usr/bin:/bin"
MakeTorchrun = Callable[[str], str]


@pytest.fixture
def other(tmp_path: Path) -> MakeTorchrun:
    """Make a folder with another program of that name, which repeats its words."""

    def make(name: str) -> str:
        (tmp_path / name).mkdir()
        program = tmp_path / name / "torchrun"
        program.write_text(f'#!/bin/sh\nprintf "{name}"; printf "|%s" "$@"\n')
        program.chmod(0o755)
        return str(program.parent)

    return make


def call(
    path: list[str], *words: str, program: str = "torchrun", **env: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$@"', program, *words],
        env={"PATH": os.pathsep.join(path), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_shim_can_be_executed() -> None:
    assert os.access(SHIM, os.X_OK)


def test_an_environment_is_shimmed_once_and_keeps_its_search_path() -> None:
    once = shimmed({"PATH": "/a:/b", "HOME": "/h"})
    twice = shimmed({**once, "PATH": f"/c:{once['PATH']}"})

    assert once == {"PATH": f"{FOLDER}:/a:/b", PYTHON: sys.executable}
    assert twice == {"PATH": f"{FOLDER}:/c:/a:/b", PYTHON: sys.executable}


@pytest.mark.process
def test_the_real_one_is_reached_with_every_word_as_it_was(other: MakeTorchrun) -> None:
    words = ("--tee", "3", "a b", "", "*", "$HOME", "--", "é\n")

    done = call([FOLDER, other("one"), other("two"), SYSTEM], *words, **{CHOICE: "real"})

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "|".join(["one", *words])


@pytest.mark.process
@pytest.mark.needs("torch")
def test_the_real_one_is_torchs() -> None:
    beside = str(Path(sys.executable).parent)

    done = call([FOLDER, beside, SYSTEM], "--help", **{CHOICE: "real"})

    assert done.stdout.startswith("usage: torchrun ")
    assert "Elastic" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("has_real", [True, False])
def test_no_order_of_shims_on_the_search_path_goes_in_circles(
    has_real: bool, other: MakeTorchrun, tmp_path: Path
) -> None:
    for name in ("copy", "again", "link", "unreadable"):
        (tmp_path / name).mkdir()
    shutil.copy(SHIM, tmp_path / "copy" / "torchrun")
    shutil.copy(SHIM, tmp_path / "again" / "torchrun")
    (tmp_path / "link" / "torchrun").symlink_to(SHIM)
    (tmp_path / "unreadable" / "torchrun").mkdir()
    shims = [str(tmp_path / name) for name in ("copy", "link", "again", "unreadable", "copy")]
    path = [*shims, FOLDER, *([other("real")] if has_real else []), "", *shims, SYSTEM]

    done = call(path, "x", **{CHOICE: "real"})

    if has_real:
        assert (done.returncode, done.stdout) == (0, "real|x")
    else:
        assert done.returncode == 127
        assert done.stderr == (
            "torchrun: LOOM_TORCHRUN=real, but PATH has no other torchrun;"
            " install torch or unset it\n"
        )


@pytest.mark.process
def test_the_shim_called_by_its_path_finds_the_real_one_too(other: MakeTorchrun) -> None:
    done = call([other("real"), SYSTEM], "x", program=str(SHIM), **{CHOICE: "real"})

    assert done.stdout == "real|x"


@pytest.mark.process
def test_otherwise_our_launcher_reads_the_words(
    other: MakeTorchrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("click.py").write_text("raise SystemExit('the working folder was searched for modules')")
    env = {PYTHON: sys.executable, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    done = call([FOLDER, other("real"), SYSTEM], "-n", "2", "train.py", **env)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "loom: no option '-n'; `torchrun --help` explains\n"
