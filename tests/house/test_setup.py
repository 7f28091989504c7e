"""The scripts behind the Makefile: finding a Python, building what was interrupted, needs."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def find_python(path: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    words = [
        "/bin/sh",
        str(ROOT / "make/python.sh"),
        "-c",
        "import sys; print(sys.version_info[0])",
    ]
    env = {"PATH": str(path), **env}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def fake(folder: Path, name: str, body: str) -> None:
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


SETUPS = ("setup.sh", "setup_linux.sh", "setup_mac.sh")
MISSING = "setup: missing: python3-venv; install them, or run ./setup_linux.sh --packages\n"
NO_XCODE = "setup: git and make are missing; run: xcode-select --install\n"
NO_PYTHON = (
    "setup: no Python 3.11 or newer; run ./setup_mac.sh --packages (Homebrew), "
    "or name one with PYTHON=/path/to/python\n"
)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a PATH of stand-ins that print what they are called with."""
    for name in ("git", "make", "python3", "xcode-select", "sudo", "apt-get", "brew"):
        fake(tmp_path, name, f'echo "{name} $*"')
    for name in ("dirname", "id"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def set_up(script: str, path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = ["/bin/sh", str(ROOT / script), *words]
    env = {"PATH": str(path)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", SETUPS)
def test_a_setup_script_is_posix_sh_and_makes_the_environment(script: str, bare: Path) -> None:
    parsed = subprocess.run(["/bin/sh", "-n", str(ROOT / script)], capture_output=True)

    done = set_up(script, bare)

    assert (parsed.returncode, parsed.stderr) == (0, b"")
    assert (done.returncode, done.stderr) == (0, "")
    assert "make venv\n" in done.stdout
    assert not any(tool in done.stdout for tool in ("sudo", "apt-get", "brew"))


@pytest.mark.parametrize(
    ("script", "lacks", "refusal"),
    [
        ("setup_linux.sh", "python3", MISSING),
        ("setup_mac.sh", "xcode-select", NO_XCODE),
        ("setup_mac.sh", "python3", NO_PYTHON),
    ],
)
def test_a_setup_script_names_what_is_missing_and_installs_nothing(
    script: str, lacks: str, refusal: str, bare: Path
) -> None:
    fake(bare, lacks, "exit 1")

    done = set_up(script, bare)

    assert (done.returncode, done.stdout, done.stderr) == (1, "", refusal)


@pytest.mark.parametrize(
    ("script", "called"),
    [
        ("setup_linux.sh", "apt-get install -y python3-venv\n"),
        ("setup_mac.sh", "brew install python\n"),
    ],
)
def test_a_setup_script_installs_what_is_missing_when_asked(
    script: str, called: str, bare: Path
) -> None:
    fake(bare, "python3", "exit 1")

    done = set_up(script, bare, "--packages")

    assert (done.returncode, done.stderr) == (0, "")
    assert called in done.stdout
    assert "make venv\n" in done.stdout


@pytest.mark.parametrize("script", SETUPS[1:])
def test_a_setup_script_refuses_unknown_options(script: str, bare: Path) -> None:
    done = set_up(script, bare, "--everything")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"usage: ./{script} [--packages]\n"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"make_{name}", ROOT / f"make/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # not that of the library, which others here use
    spec.loader.exec_module(module)
    return module


def test_without_a_python_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    done = find_python(tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "make: torchLoom needs Python 3.11 or newer with venv: install it "
        "(Debian, Ubuntu: apt install python3-venv; macOS: brew install python) "
        "or name one with PYTHON=/path/to/python.\n"
    )


def test_an_old_python_is_named(tmp_path: Path) -> None:
    fake(tmp_path, "python3", "exit 3")

    assert "(python3 is older)" in find_python(tmp_path).stderr


def test_a_python_without_venv_is_told_apart(tmp_path: Path) -> None:
    fake(tmp_path, "python3", "exit 1")

    assert "python3 has no venv module" in find_python(tmp_path).stderr


def test_an_old_python3_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    fake(tmp_path, "python3", "exit 3")
    fake(tmp_path, "python3.12", f'exec {sys.executable} "$@"')

    assert find_python(tmp_path).stdout == "3\n"


def test_a_named_python_is_the_only_one_tried(tmp_path: Path) -> None:
    fake(tmp_path, "python3", f'exec {sys.executable} "$@"')

    assert find_python(tmp_path, PYTHON="/nowhere/python").returncode == 1


def test_a_stamp_counts_only_when_finished_and_unchanged(tmp_path: Path) -> None:
    venv = load("venv")
    recipe = venv.RECIPES["demo"]
    stamp = tmp_path / ".demo.stamp"

    assert not venv.is_current(stamp, recipe)
    venv.write_stamp(stamp, recipe)
    assert venv.is_current(stamp, recipe)
    assert not venv.is_current(stamp, venv.RECIPES["dev"])
    (tmp_path / ".unfinished").touch()
    assert not venv.is_current(stamp, recipe)


@pytest.mark.process
def test_an_interrupted_environment_is_made_anew(tmp_path: Path) -> None:
    venv = load("venv")
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / ".unfinished").touch()
    (folder / "half").touch()

    venv.make_folder(folder, folder / ".unfinished")

    assert venv.works(folder)
    assert not (folder / "half").exists()


def test_a_folder_that_is_not_ours_is_never_deleted(tmp_path: Path) -> None:
    venv = load("venv")
    (tmp_path / "mine.txt").touch()

    with pytest.raises(SystemExit, match="move it away"):
        venv.make_folder(tmp_path, tmp_path / ".unfinished")

    assert (tmp_path / "mine.txt").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("required", "ci", "outcome"),
    [
        ("", "", "1 skipped"),
        ("mount", "", "1 skipped"),
        ("mount,torch", "", "1 error"),
        ("", "true", "1 error"),
    ],
)
def test_a_missing_need_skips_unless_it_is_required(
    tmp_path: Path, required: str, ci: str, outcome: str
) -> None:
    text = (ROOT / "tests/conftest.py").read_text()
    text = text.replace('_no_module, "torch"', '_no_module, "no_such_torch"')
    tests = tmp_path / "tests"
    shutil.copytree(ROOT / "tests/harness", tests / "harness")
    (tests / "conftest.py").write_text(text)
    options = "addopts = --import-mode=importlib\nmarkers = needs(what): x\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{options}")
    (tests / "test_it.py").write_text(
        "import pytest\n@pytest.mark.needs('torch')\ndef test_it(): pass\n"
    )
    env = {**os.environ, "LOOM_TEST_REQUIRE": required, "CI": ci}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]

    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines()[-1].startswith(outcome)
