"""The table of where torchLoom runs: each row has one of three states, and its tests exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATES = ("run", "simulated", "never run")
CELLS = re.compile(r"(?<!\\)\|")


def rows() -> list[list[str]]:
    """Return the cells of each row of the page's tables."""
    lines = (ROOT / "docs/reference/support.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|") and not line.startswith("|---")]
    found = [[cell.strip() for cell in CELLS.split(line)[1:-1]] for line in tables]
    return [row for row in found if row[1] != "state"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_has_a_state_and_tests_that_exist(row: list[str]) -> None:
    what, state, details, tests = row

    missing = [path for path in re.findall(r"`(tests/[^`]+)`", tests) if not (ROOT / path).exists()]
    assert state in STATES, what
    assert missing == []
    assert state == "never run" or tests or "by hand" in details, "what shows it?"
