"""Ranks of several hosts that are replaced one by one, on the word of a weaver that a test is."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom import settings
from torchloom.launch.host.sockets import UPLINK
from torchloom.messages.membership import ProcessReport

from ...harness.home import until
from ...harness.host_launches import LIMIT, Launches
from ..fake_agent import FakeAgent

pytestmark = pytest.mark.needs("torch")
WAIT = """
import time
while not os.path.exists(os.environ["REPORTS"] + "/../enough"): time.sleep(0.01)
"""


@pytest.fixture
def plane(home: Path) -> Iterator[FakeAgent]:
    with FakeAgent(settings.plane_dir() / UPLINK) as agent:
        yield agent


def watched(plane: FakeAgent, launches: Launches, home: Path) -> "subprocess.Popen[str]":
    """Start three ranks on two of three hosts, with the plane's agent on the first."""
    hosts = launches.hostfile(n1=1, n2=2, n3=2)
    words = ["--hostfile", hosts, "--nnodes", "2", "--max-restarts", "1", "--policy", "live"]
    env = {"XDG_RUNTIME_DIR": str(home.parent / "run"), "LOOM_PLANE": "0", "LOOM_WARM": "0"}
    launch = launches.launch("n1", *words, launches.script(WAIT), env=env)
    launches.until_up(3)
    until(lambda: plane.lives)
    plane.watch()
    until(lambda: any(event["event"] == "watched" for event in launches.events()))
    return launch


def last(launches: Launches, rank: int) -> tuple[str, str, str, str]:
    told = launches.told()[rank]
    names = ("LOOM_LIFE", "LOOM_GENERATION", "LOCAL_RANK")
    return (told["host"], *(told["env"][name] for name in names))


def test_a_rank_of_another_host_is_replaced_there_and_meets_the_others_in_a_store_of_their_own(
    plane: FakeAgent, launches: Launches, home: Path
) -> None:
    launch = watched(plane, launches, home)
    first = plane.newest
    victim = launches.told()[2]["pid"]
    number = launches.number_of("n2", victim)
    assert number is not None

    os.kill(number, signal.SIGKILL)
    ended = plane.until_ended(2, 1)
    for _ in range(3):
        plane.fork(2, 2, generation=1, node="n2")
        plane.make_store(1)
    launches.until_up(1, lives=2)
    store = plane.until_told(lambda lives: lives.stored == 1).store

    assert first.lives == (
        ProcessReport(0, 1, "n1"),
        ProcessReport(1, 1, "n2"),
        ProcessReport(2, 1, "n2"),
    )
    assert first.room == {"n1": 1, "n2": 2, "n3": 2}
    assert ended == ProcessReport(2, 1, "n2", -signal.SIGKILL)
    assert last(launches, 2) == ("n2", "2", "1", "1")
    assert [len(lives) for lives in launches.lives().values()] == [1, 1, 2]
    host, port = store.removeprefix("tcp://").split(":")
    words = f"import socket; socket.create_connection(({host!r}, {port}), 5); print('there')"
    said = launches.cluster.run("n2", ["python3", "-c", words]).stdout
    assert said == "there\n"
    (launches.folder / "enough").touch()
    assert launch.wait(LIMIT) == 0
    assert launches.record()["restarts"] == 0


def test_ranks_of_a_host_that_is_lost_come_to_a_spare_one_and_a_restart_follows_them(
    plane: FakeAgent, launches: Launches, home: Path
) -> None:
    launch = watched(plane, launches, home)

    launches.kill("n2")
    lost = plane.until_told(lambda lives: lives.lost)
    for rank in (1, 2):
        plane.fork(rank, 2, generation=1, node="n3")
    launches.until_up(2, lives=2)
    newcomers = [last(launches, rank) for rank in (1, 2)]
    plane.restart("node_lost_n2", "live_wait")
    until(lambda: [len(lives) for lives in launches.lives().values()] == [2, 3, 3])

    assert (lost.lost, [one.code for one in lost.lives]) == (("n2",), [None] * 3)
    assert lost.room == {"n1": 1, "n3": 2}
    assert newcomers == [("n3", "2", "1", "0"), ("n3", "2", "1", "1")]
    again = [last(launches, rank) for rank in range(3)]
    assert again == [("n1", "1", "2", "0"), ("n3", "1", "2", "0"), ("n3", "1", "2", "1")]
    (launches.folder / "enough").touch()
    assert launch.wait(LIMIT) == 0
    assert launches.record()["restarts"] == 1
    assert [one["reason"] for one in launches.events() if one["event"] == "restart"] == [
        "node_lost_n2"
    ]
