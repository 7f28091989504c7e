"""`loom bench` as a person runs it: real commands, one figure, an honest exit code."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = tomllib.loads((ROOT / "benchmarks/targets.toml").read_text())
SCHEMA = json.loads((ROOT / "docs/json/bench.schema.json").read_text())


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torchloom", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_one_figure_with_few_samples_is_measured_and_not_met() -> None:
    done = bench("cli", "--only", "version", "-n", "2", "--json")

    rows = json.loads(done.stdout)
    jsonschema.validate(rows, SCHEMA)
    assert done.returncode == 1
    assert [(row["name"], row["met"], len(row["samples"]["ours"])) for row in rows] == [
        ("version", False, 2)
    ]


@pytest.mark.process
def test_waiting_is_measured_from_the_apps_own_last_act() -> None:
    done = bench("cli", "--only", "wait", "-n", "2", "--json")

    (row,) = json.loads(done.stdout)
    assert all(0 < value < 5000 for value in row["samples"]["ours"])


@pytest.mark.process
def test_an_unknown_figure_is_refused_with_the_ones_that_exist() -> None:
    done = bench("cli", "--only", "nonsense")

    assert done.returncode == 2
    assert "help, version, completion, plan" in done.stderr


@pytest.mark.process
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "only",
    [
        pytest.param("first-step-warm", id="short"),
        pytest.param("", id="long", marks=pytest.mark.soak),
    ],
)
def test_the_launch_bench_measures_its_figures_and_ends_its_zygotes(
    tmp_path: Path, only: str
) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "launch", "-n", "1", "--json"]
    command += ["--only", only] if only else []
    env = {**os.environ, "TMPDIR": str(tmp_path), "LOOM_WARM": "0"}

    done = subprocess.run(
        [*command, "--peers", str(tmp_path / "none")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    rows = json.loads(done.stdout)
    jsonschema.validate(rows, SCHEMA)
    measured = {row["name"]: (len(row["samples"]["ours"]), row["met"]) for row in rows}
    assert measured == dict.fromkeys([only] if only else TARGETS["launch"], (1, False)), done.stderr
    assert done.returncode == 1
    assert list(tmp_path.glob("loom-bench-*")) == []
    assert [line for line in command_lines() if str(tmp_path) in line] == []


def command_lines() -> list[str]:
    """Return what runs on this machine, as /proc shows it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.parametrize("area", sorted(TARGETS))
def test_every_figure_has_a_target_and_every_target_a_figure(area: str) -> None:
    parts = (ROOT / "benchmarks").glob(f"{area}*.py")
    source = "\n".join(path.read_text() for path in parts)

    named = re.findall(r'Figure\(\s*"([^"]+)"', source)
    assert sorted(named) == sorted(TARGETS[area])


@pytest.mark.process
@pytest.mark.parametrize("area", sorted(TARGETS))
def test_every_bench_can_be_loaded(area: str) -> None:
    words = [sys.executable, "-c", f"import benchmarks.{area}"]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
