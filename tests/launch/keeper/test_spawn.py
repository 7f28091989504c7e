"""A fork takes every signal from its first moment on, and runs nothing before its keeper allows."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.wire import Connection

from ...harness.home import until

pytestmark = pytest.mark.process
RANKS = 20
KEEP = """
import os, socket, sys, time
from pathlib import Path
from torchloom.launch.host.descendants import JobShare as Share
from torchloom.launch.keeper import spawn
from torchloom.launch.keeper.service import Keeper

folder = Path(sys.argv[3])


class Known:  # what no test needs otherwise
    are_known = False

    def why_cold(self, order):
        return ""

    def forget(self):
        pass

    def look_ahead(self):
        return False


{forks}

channel = socket.socket(fileno=int(sys.argv[1]))
channel.set_inheritable(False)
Keeper(Share(sys.argv[2], "here"), channel, folder / "keeper", Forks(), 60.0).serve()
"""
# Warm ranks that end by themselves after a while: then a signal was lost.
WAITING = """
class Forks(Known):
    are_known = True

    def run(self, order, verdict):
        time.sleep(5)
        os._exit(0)
"""
# Warm ranks that note what they do; the keeper finds out about them when the test lets it.
NOTING = """
class Forks(Known):
    def why_cold(self, order):
        while not (folder / "found-out").exists():
            time.sleep(0.01)
        return "" if order.argv[1] == "warm" else order.argv[1]

    def run(self, order, verdict):
        (folder / f"forked-{os.getpid()}").touch()
        os._exit(10 if spawn.may_run(verdict) else 11)
"""
ENDING = """
class Forks(Known):
    def run(self, order, verdict):
        os._exit(12)
"""
# Warm ranks that end as they are told; the keeper notes what it does about the files meanwhile.
LOOKING = """
class Forks(Known):
    def note(self, word):
        with open(folder / "noted", "a") as file:
            file.write(word + "\\n")

    def why_cold(self, order):
        self.note("verdict")
        return ""

    def forget(self):
        self.note("forget")
        self.left = 3

    def look_ahead(self):
        self.note("look")
        self.left -= 1
        return self.left > 0 or (folder / "endless").exists()

    def run(self, order, verdict):
        spawn.may_run(verdict)
        os._exit(int(order.argv[1]))
"""
ORDER = {"argv": ["python"], "env": {}, "cwd": "/", "given": 3, "note": {}, "warm": True}


class KeeperProcess:
    """A keeper with these forks, in a process of its own, and the messages it has sent."""

    def __init__(self, folder: Path, forks: str) -> None:
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), f"app-{os.getpid()}", str(folder)]
        code = KEEP.format(forks=forks)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._selector, self.heard = selectors.DefaultSelector(), list[Any]()
        handle = lambda message, _: self.heard.append(message)  # noqa: E731
        self.connection = Connection(ours, self._selector, handle, lambda: None)

    def start(self, number: int, *argv: str) -> None:
        with open(os.devnull, "r+b") as null:
            order = {"do": "start", "id": number, **ORDER, "argv": ["python", *argv]}
            self.connection.send(order, [null.fileno()] * 3)

    def codes(self, count: int) -> list[int]:
        """Return how all ranks ended, in the order of their numbers."""
        codes: dict[int, int] = {}
        while len(codes) < count:
            for key, ready in self._selector.select(30):
                key.data(ready)
            exits = (child for each in self.said("exited") for child in each["children"])
            codes = {child["id"]: child["code"] for child in exits}
        return [codes[number] for number in sorted(codes)]

    def said(self, kind: str) -> list[Any]:
        return [each for each in self.heard if each["say"] == kind]

    def end(self) -> int:
        self.connection.send({"do": "end"})
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self._selector.close()


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[[str], KeeperProcess]]:
    with contextlib.ExitStack() as at_end:

        def make(forks: str) -> KeeperProcess:
            made = KeeperProcess(tmp_path, forks)
            at_end.callback(made.close)
            return made

        yield make


def test_a_warm_rank_that_is_stopped_as_it_starts_ends(
    keep: Callable[[str], KeeperProcess],
) -> None:
    keeper = keep(WAITING)

    for number in range(RANKS):
        keeper.start(number)
        signum = int(signal.SIGTERM)
        keeper.connection.send({"do": "signal", "id": number, "signum": signum})

    codes = keeper.codes(RANKS)
    assert (codes, keeper.end()) == ([-signal.SIGTERM] * RANKS, 0)


def test_ranks_that_start_together_are_forked_first_and_wait_for_the_verdict(
    keep: Callable[[str], KeeperProcess], tmp_path: Path
) -> None:
    keeper = keep(NOTING)

    for number, word in enumerate(["warm", "cold", "warm", "edited"]):
        keeper.start(number, word)
    until(lambda: len(list(tmp_path.glob("forked-*"))) == 4, 30)
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("forked-*")]
    waiting = [is_child(keeper.process.pid, pid) for pid in pids]
    (tmp_path / "found-out").touch()
    codes = keeper.codes(4)

    assert waiting == [True] * 4
    assert codes == [10, 11, 10, 11]
    assert [one["cold"] for one in keeper.said("started")] == ["", "cold", "", "edited"]
    assert keeper.end() == 0


def test_a_rank_that_ends_at_once_is_reported_as_started_first(
    keep: Callable[[str], KeeperProcess],
) -> None:
    keeper = keep(ENDING)

    for number in range(RANKS):
        keeper.start(number)
    codes = keeper.codes(RANKS)

    assert codes == [12] * RANKS
    started = set[int]()
    for each in keeper.heard:
        if each["say"] == "started":
            started.add(each["id"])
        if each["say"] == "exited":
            assert {child["id"] for child in each["children"]} <= started


def test_a_keeper_looks_at_the_files_when_a_rank_has_failed_not_when_it_is_asked(
    keep: Callable[[str], KeeperProcess], tmp_path: Path
) -> None:
    keeper, noted = keep(LOOKING), tmp_path / "noted"

    keeper.start(0, "0")
    assert keeper.codes(1) == [0]
    keeper.start(1, "7")
    assert keeper.codes(2) == [0, 7]
    until(lambda: noted.read_text().count("look") == 3, 30)

    assert noted.read_text().split() == ["verdict", "verdict", "forget", *["look"] * 3]


def test_an_order_does_not_wait_until_all_files_were_looked_at(
    keep: Callable[[str], KeeperProcess], tmp_path: Path
) -> None:
    keeper = keep(LOOKING)
    (tmp_path / "endless").touch()

    keeper.start(0, "7")
    assert keeper.codes(1) == [7]
    keeper.start(1, "0")

    assert keeper.codes(2) == [7, 0]


def is_child(parent: int, pid: int) -> bool:
    """Tell whether a process lives and has this parent."""
    state, found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state != "Z" and int(found) == parent
