"""Starting and ending launches again and again: none hangs, none leaves anything."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...harness.host_launches import LOOM, Launches
from .evidence import teller, write

ENDINGS = ("by itself", "SIGINT", "SIGTERM", "loom stop", "SIGKILL of the command")
GONE = 45.0  # seconds in which nothing of an ended launch is left; a machine may be loaded
TRAIN = """
import time
while not os.path.exists(os.environ["REPORTS"] + "/../enough"): time.sleep(0.005)
"""


def cycle(launches: Launches, number: int, script: Path) -> dict[str, Any]:
    """Start a launch, here or over hosts, end it in one of five ways; return what it took."""
    how, spread = ENDINGS[number % len(ENDINGS)], number // len(ENDINGS) % 2 == 0
    shutil.rmtree(launches.reports)
    launches.reports.mkdir()
    (launches.folder / "enough").unlink(missing_ok=True)
    hosts = ("--hostfile", str(launches.hostfile(n1=1, n2=1))) if spread else ("-n", "2")
    began = time.monotonic()
    launch = launches.launch("n1", *hosts, script)
    launches.until_up(2)
    up = time.monotonic()
    end(launches, launch.pid, how)
    code = launch.wait(GONE + 15)
    launches.nothing_left(GONE)
    gone = time.monotonic()
    run = launches.home / "runs" / launches.app_id
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    shutil.rmtree(run)
    seconds = {"up": round(up - began, 3), "gone": round(gone - up, 3)}
    return {
        "cycle": number,
        "hosts": 2 if spread else 1,
        "ending": how,
        "code": code,
    } | {
        **seconds,
        "folder_bytes": size,
    }


def end(launches: Launches, command: int, how: str) -> None:
    if how == "by itself":
        (launches.folder / "enough").touch()
    elif how == "loom stop":
        words = [*LOOM, "stop", launches.app_id]
        done = launches.cluster.run("n1", words, launches.variables())
        assert done.returncode == 0, done.stderr
    else:
        os.kill(command, signal.Signals[how.split()[0]])


def cycles(
    launches: Launches, count: int, tell: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    script = launches.script(TRAIN)
    samples = []
    for number in range(count):
        samples.append(cycle(launches, number, script))
        tell(
            "cycle {cycle}: {hosts} hosts, {ending}: up {up} s, gone {gone} s".format(**samples[-1])
        )
    assert {each["code"] for each in samples if each["ending"] == "by itself"} == {0}
    assert 0 not in {each["code"] for each in samples if each["ending"] != "by itself"}
    return samples


def test_ten_launches_leave_nothing(launches: Launches) -> None:
    samples = cycles(launches, 10)

    assert len(samples) == 10


@pytest.mark.soak
def test_two_hundred_launches_leave_nothing(
    launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = cycles(launches, 200, teller(capsys))

    sizes = [each["folder_bytes"] for each in samples]
    assert len(samples) == 200
    assert max(sizes[-20:]) <= 1.2 * max(sizes[:20])
    facts = {
        "cycles": len(samples),
        "hangs": 0,
        "left_behind": 0,
        "slowest_seconds": slowest(samples),
    }
    write("launch-cycles", facts, samples)


def slowest(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Return the longest that any launch took to be up, and then to be gone."""
    return {what: max(each[what] for each in samples) for what in ("up", "gone")}
