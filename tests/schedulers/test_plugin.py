"""The engine that the page about engines shows is one: installed from an entry point, it runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..harness.home import until

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "schedulers.md"
LOOM = (sys.executable, "-m", "torchloom")
OVER = ("COMPLETED", "FAILED", "CANCELLED")

pytestmark = pytest.mark.process


@pytest.fixture
def site(tmp_path: Path, home: Path) -> dict[str, str]:
    """Install the page's engine as a distribution; return the variables by which it is found."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (points,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    name, target = re.findall(r'(\w+) = "(\S+)"', points)[0]
    info = tmp_path / "site" / "loom_shell-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loom-shell\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torchloom.schedulers]\n{name} = {target}\n")
    (tmp_path / "site" / "loom_shell.py").write_text(code)
    assert len(code.splitlines()) < 100
    found = f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": found}


def test_an_engine_from_an_entry_point_plans_runs_lists_reads_and_ends(
    site: dict[str, str],
) -> None:
    Path("train.py").write_text("import os, sys; print('rank', os.environ['RANK'], *sys.argv[1:])")

    def said(*words: str) -> str:
        done = subprocess.run([*LOOM, *words], env=site, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    plan = said("plan", "-s", "shell", "-cfg", "niceness=3", "train.py")
    handle = said("run", "-d", "-s", "shell", "-n", "2", "train.py", "a b").split("\n")[0]
    until(lambda: json.loads(said("show", handle, "--json"))["state"] in OVER)
    shown = json.loads(said("show", handle, "--json"))

    assert "renice -n 3" in plan
    assert (shown["state"], shown["scheduler"]) == ("COMPLETED", "shell")
    assert sorted(said("logs", handle).splitlines()) == [
        "[rank0]: rank 0 a b",
        "[rank1]: rank 1 a b",
    ]
    assert handle in said("ls", "-s", "shell")
    assert "niceness" in said("runopts", "shell")
    assert said("rm", handle) == f"{handle} removed\n"
