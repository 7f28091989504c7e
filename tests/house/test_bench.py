"""`loom bench` as a person runs it: real commands, one figure, an honest exit code."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
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


def test_every_figure_has_a_target_and_every_target_a_figure() -> None:
    targets = tomllib.loads((ROOT / "benchmarks/targets.toml").read_text())["cli"]
    source = (ROOT / "benchmarks/cli.py").read_text()

    assert {name: f'Figure("{name}"' in source for name in targets} == dict.fromkeys(targets, True)
    assert source.count("Figure(") == len(targets)
