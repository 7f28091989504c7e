"""The page about the command line tells the truth: its examples run, its table is the table."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.verbs import ALIASES, VERBS

PAGE = (Path(__file__).parents[2] / "docs" / "internals" / "cli.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMPONENT = """
import torchx.specs as specs

def job(word: str) -> specs.AppDef:
    return specs.AppDef("speech", [specs.Role("a", "", entrypoint="echo", args=[word])])
"""
SPEC = "name: told\nroles:\n- {name: a, image: '', entrypoint: 'true'}\n"
JOB = "name: told\nscript: train.py\nresources: {workers: 2}\n"


def test_the_page_names_every_verb_and_every_alias() -> None:
    words = set(re.findall(r"`([a-z]+)`", PAGE))

    assert set(VERBS) - words == {"bench"}  # for the repository, not for the installed package
    assert set(ALIASES) - words == {"job", "schedulers"}


@pytest.mark.process
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_every_example_of_the_page_runs(block: str, loom: Any, script: Callable[..., str]) -> None:
    script("print('loss 0.5')")
    script(COMPONENT, "mine.py")
    Path("app.yaml").write_text(SPEC)
    Path("job.yaml").write_text(JOB)
    if "@" in block and "run -d" not in block:
        loom("run", "train.py")

    lines = block.splitlines()

    assert all(line.startswith("$ ") for line in lines)
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line[2:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 or _only_leftovers(line, done.stdout), (line, done.stderr)


def _only_leftovers(line: str, out: str) -> bool:
    """Tell whether all that `doctor` finds is what tests beside this one crashed on purpose."""
    problems = [row for row in out.splitlines() if row.startswith("problem")]
    return line == "$ loom doctor" and all("leftovers" in row for row in problems)
