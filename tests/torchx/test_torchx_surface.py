"""Every public name of TorchX is here, or the manual's table says why it is not."""

import importlib
import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from torchloom.torchx.names import MODULES, torchx_names

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("recordings").joinpath("surface.json").read_text()
)
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "torchx.md").read_text()
SECTION = PAGE.partition("## Names that are not here")[2].partition("## What differs")[0]
ALL = "all"


class Row(NamedTuple):
    """A row of the table: the modules and names that are not here, and the reason."""

    module: str
    names: str
    reason: str

    def covers(self, module: str, name: str) -> bool:
        listed = self.names == ALL or name in re.findall("`([^`]+)`", self.names)
        return fnmatchcase(module, self.module) and listed


TABLE = [
    Row(*row) for row in re.findall(r"^\| `(torchx[^`]*)` \| (.*?) \| (.*?) \|$", SECTION, re.M)
]


def missing() -> list[tuple[str, str]]:
    """Return TorchX's names that cannot be had from its modules as torchloom serves them."""
    found = []
    with torchx_names():
        for module, names in RECORDED["modules"].items():
            ours = importlib.import_module(module) if module in MODULES else None
            found += [(module, name) for name in names if not hasattr(ours, name)]
    return found


@pytest.fixture(scope="module")
def absent() -> list[tuple[str, str]]:
    return missing()


def test_what_is_missing_is_in_the_table(absent: list[tuple[str, str]]) -> None:
    unlisted = [
        f"{module}.{name}"
        for module, name in absent
        if not any(row.covers(module, name) for row in TABLE)
    ]

    assert unlisted == []


def test_the_table_lists_nothing_that_is_here(absent: list[tuple[str, str]]) -> None:
    stale = []
    for module, names in RECORDED["modules"].items():
        here = [name for name in names if (module, name) not in absent]
        stale += [f"{module}.{name}" for name in here for row in TABLE if row.covers(module, name)]
    unknown = [
        f"{row.module}: {name}"
        for row in TABLE
        for name in re.findall("`([^`]+)`", "" if row.names == ALL else row.names)
        if name not in RECORDED["modules"].get(row.module, {})
    ]
    idle = [row.module for row in TABLE if not any(row.covers(*each) for each in absent)]

    assert (stale, unknown, idle) == ([], [], [])
    assert all(row.reason for row in TABLE)


def test_the_recording_is_of_the_whole_package(absent: list[tuple[str, str]]) -> None:
    names = sum(map(len, RECORDED["modules"].values()))
    print(f"{names - len(absent)} of {names} names of {RECORDED['version']}")

    assert names > 450
    assert len(absent) < names / 2
