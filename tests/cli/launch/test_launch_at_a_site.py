"""What a site's table does to a launch on one host: noise is hidden, modules are loaded."""

import os
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.shim import FOLDER

NOISY = """
import os, sys
print("WARN: one\\nloss 1\\nWARN: two")
print("loss 2\\nWARN: three", end="", file=sys.stderr)
"""
MODULE = (
    'module() { export LOADEDMODULES="$LOADEDMODULES:$2/1.0" CUDA_ROOT="/sw/$2" '
    'PATH="/sw/$2:$PATH"; }\n'
)
TELL = """
import os
path = os.environ["PATH"].split(":")[:2]
print(os.environ["CUDA_ROOT"], path, repr(os.environ["LOOM_MODULES"]))
"""


@pytest.fixture
def table(state: Path) -> Any:
    """Write the user's table, with one site that is here."""

    def write(entry: str) -> None:
        text = f"[mine]\nmatch = {{ hosts = '{os.uname().nodename}' }}\n{entry}\n"
        (state / "sites.toml").write_text(text)

    return write


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give bash a `module`."""
    (tmp_path / "module.sh").write_text(MODULE)
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "module.sh"))
    for name in ("LOADEDMODULES", "LOOM_MODULES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "prefixes"),
    [(["-n", "2"], ["[rank0]: ", "[rank1]: "]), (["--as-torchrun", "--nproc-per-node=2"], [""])],
)
def test_noise_is_hidden_and_counted_and_the_logs_have_it(
    words: list[str], prefixes: list[str], table: Any, script: Any, loom: Any
) -> None:
    table("noise = ['WARN: .*']")

    done = loom("launch", *words, script(NOISY))

    (job,) = loom.ids()
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.decode().splitlines()) == {f"{each}loss 1" for each in prefixes}
    told = done.stderr.decode()
    assert "WARN" not in told
    assert "loom: 6 lines of known noise hidden (site mine); the logs have all\n" in told
    assert loom("logs", job).stdout.count(b"WARN: ") == 6
    kept = sorted((loom.home / "runs" / job / "logs").glob("*/0/*/stdout.log"))
    assert [path.read_text() for path in kept] == ["WARN: one\nloss 1\nWARN: two\n"] * 2


@pytest.mark.process
def test_without_noise_nothing_is_said_of_it(table: Any, script: Any, loom: Any) -> None:
    table("noise = ['ERROR: .*']")

    done = loom("launch", "-n", "1", script(NOISY))

    assert done.stdout.decode() == "[rank0]: WARN: one\n[rank0]: loss 1\n[rank0]: WARN: two\n"
    assert b"hidden" not in done.stderr


@pytest.mark.process
def test_ranks_start_after_the_sites_modules(
    table: Any, module: None, script: Any, loom: Any
) -> None:
    table('modules = ["cuda"]')

    done = loom("launch", "-n", "2", script(TELL))

    assert done.returncode == 0, done.stderr
    told = f"/sw/cuda ['{FOLDER}', '/sw/cuda'] ''"
    assert sorted(done.stdout.decode().splitlines()) == [f"[rank{n}]: {told}" for n in (0, 1)]


@pytest.mark.process
def test_loom_modules_says_it_for_one_launch(
    module: None, script: Any, loom: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_MODULES", "a b/2")

    done = loom("launch", "-n", "1", "printenv", "LOADEDMODULES")

    assert (done.returncode, done.stdout) == (0, b"[rank0]: :a/1.0:b/2/1.0\n"), done.stderr


def test_a_dry_run_loads_nothing_and_says_what_would_be(table: Any, script: Any, loom: Any) -> None:
    table('modules = ["cuda", "nccl"]')

    done = loom("launch", "--dryrun", "-n", "1", script(TELL))

    assert done.returncode == 0, done.stderr
    assert "note: ranks start after `module load cuda nccl`\n" in done.stdout.decode()


@pytest.mark.needs("bash")
def test_a_host_without_module_starts_nothing(
    table: Any, script: Any, loom: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table('modules = ["cuda"]')
    for name in ("BASH_ENV", "MODULESHOME", "LMOD_PKG", "LOOM_MODULES"):
        monkeypatch.delenv(name, raising=False)

    done = loom("launch", "-n", "1", script(TELL))

    assert (done.returncode, done.stdout, loom.ids()) == (2, b"", [])
    (said,) = done.stderr.decode().splitlines()
    assert said.startswith(f"loom: {os.uname().nodename} has no `module` to load cuda; ")


def test_a_table_that_cannot_be_read_starts_nothing(table: Any, script: Any, loom: Any) -> None:
    table("noise = ['(']")

    done = loom("launch", "-n", "1", script(NOISY))

    assert (done.returncode, done.stdout, loom.ids()) == (2, b"", [])
    assert b"site 'mine': '(' is not a regular expression" in done.stderr
