"""The table of environment variables is whole, and `loom doctor` finds names that are none."""

import re
from pathlib import Path
from typing import Any

import torchloom
from torchloom.doctor.findings import CheckFinding, CheckState
from torchloom.doctor.variables import VARIABLES, known, misspelt
from torchloom.specs.validate import SET_FOR_ALL, SET_FOR_PEERS

SOURCE = Path(torchloom.__file__).parent
BUILD = ("LOOM_NO_DASHBOARD", "LOOM_NO_DOCS")  # read by make/
NAME = re.compile(r"\b(?:LOOM_[A-Z][A-Z_]*[A-Z]|LOOMCONFIG|torchLoom_ADDR)\b")


def test_every_variable_of_the_source_is_in_the_table_and_no_other() -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py") if path.name != "variables.py"]
    texts += [(SOURCE / "launch/variables.py").read_text()]
    used = {name for text in texts for name in NAME.findall(text)}

    assert sorted(name for name in used if not known(name)) == []
    ours = {row.name for row in VARIABLES if NAME.fullmatch(row.name)}
    assert sorted(ours - used - {*BUILD}) == []


def test_what_the_launcher_sets_is_in_the_table() -> None:
    assert sorted(name for name in SET_FOR_ALL | SET_FOR_PEERS if not known(name)) == []


def test_every_row_says_what_it_means() -> None:
    assert all(row.meaning and row.reader for row in VARIABLES)
    assert len({row.name for row in VARIABLES}) == len(VARIABLES)


def test_a_misspelt_variable_is_noted_with_the_right_name(place: Any) -> None:
    env = {"LOOM_DATABSE": "x", "LOOM_HOME": "/a", "LOOM_OF_MINE_ALONE": "1", "LOOM_PORT_WEB": "1"}

    assert list(misspelt(place(env=env))) == [
        CheckFinding(
            "variables",
            CheckState.NOTE,
            "LOOM_DATABSE is set, and torchLoom does not read it",
            "write LOOM_DATABASE",
        )
    ]
    assert [each.state for each in misspelt(place(env={}))] == [CheckState.OK]
