"""`loom test` trains on real ranks, and says in words and in its exit code how that went."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = str(Path(__file__).parents[2] / "src")
RUN = "import sys; from torchloom.cli.main import main; sys.exit(main(sys.argv[1:]))"
# An interpreter that finds everything but torch.
WITHOUT_TORCH = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else real(name, *rest)
"""


def ran(loom: Any, *words: str, before: str = "") -> Any:
    import os
    import subprocess

    return subprocess.run(
        [sys.executable, "-c", before + RUN, *words],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.process
@pytest.mark.needs("torch")
def test_two_ranks_train_together_and_the_report_is_json(loom: Any) -> None:
    done = ran(loom, "test", "-n", "2", "--steps", "5", "--model", "cnn", "--json")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ranks = told["ranks"]
    assert (told["ok"], told["error"], told["model"], told["steps"]) == (True, None, "cnn", 5)
    assert (told["world_size"], told["backend"]) == (2, "gloo")
    assert told["loss_after"] < told["loss_before"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert len({rank["digest"] for rank in ranks}) == 1
    assert len({rank["pid"] for rank in ranks}) == 2


@pytest.mark.process
@pytest.mark.needs("torch")
def test_without_a_number_two_ranks_say_for_people_how_it_went(loom: Any) -> None:
    done = ran(loom, "test", "--steps", "5", "--backend", "gloo")

    assert done.returncode == 0, done.stderr
    assert "rank  local  node  host" in done.stdout
    assert "mlp, 5 steps, 2 x cpu, backend gloo: loss " in done.stdout
    assert "ok: all ranks have the same parameters" in done.stdout


@pytest.mark.process
def test_without_torch_the_command_that_adds_it_is_named(loom: Any) -> None:
    done = ran(loom, "test", before=WITHOUT_TORCH)

    assert done.returncode == 2
    assert "torch is not installed: pip install 'torchloom[torch]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--steps", "0"], "'--steps': 0 is not in the range x>=1"),
        (["--model", "gpt"], "'gpt' is not one of"),
        (["-n", "2", "-n", "3"], "-n is given more than once"),
    ],
)
def test_what_cannot_be_tested_is_said(words: list[str], why: str, loom: Any) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: it is not installed")

    done = ran(loom, "test", *words)

    assert done.returncode == 2
    assert why in done.stderr
