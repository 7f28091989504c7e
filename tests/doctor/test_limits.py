"""What the kernel grants, and clocks that disagree."""

import json
import subprocess
import sys
from typing import Any

import pytest

from torchloom.doctor import host
from torchloom.doctor.findings import CheckState

LOOK = """
import json
from pathlib import Path
from torchloom.doctor.checks import HostPlace as Place
from torchloom.doctor import host as limits
found = limits.limits(Place({}, "localhost", Path("/"), Path("/"), "ada"))
print(json.dumps([(each.state, each.text, each.remedy) for each in found]))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("ulimit", "expected"),
    [
        ("-Sn 200", ["problem", "200 open files"]),
        ("-Sn 1024", ["note", "1024 open files"]),
    ],
)
def test_few_open_files_are_told_with_the_command_that_helps(
    ulimit: str, expected: list[str]
) -> None:
    words = ["bash", "-c", f'ulimit {ulimit}; exec "$@"', "sh", sys.executable, "-c", LOOK]

    first = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)[0]

    assert first[:2] == expected
    assert first[2].startswith("ulimit -n ")


@pytest.mark.process
def test_few_processes_are_a_note() -> None:
    words = ["bash", "-c", 'ulimit -Su 500; exec "$@"', "sh", sys.executable, "-c", LOOK]

    found = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)

    assert ["note", "500 processes and threads", "ulimit -u 16384"] in found


def test_the_clock_of_a_local_disk_is_ours(place: Any) -> None:
    (found,) = host.clock(place())

    assert found.state is CheckState.OK
