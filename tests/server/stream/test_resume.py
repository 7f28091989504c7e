"""A client that comes back twenty times, while servers and weavers are killed, misses nothing."""

import contextlib
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from torchloom.specs.api import AppState

from ...harness.home import until
from ...harness.metric_senders import Launched, Teller
from ...harness.server_plane import PATIENCE, Plane, Server, running
from ..listening import listening

pytestmark = pytest.mark.process

JOB, RANKS, STEPS = "resumed", 2, 1500
VISITS, KILLS, WEAVER_KILLS = 20, (3, 6, 8, 11, 14, 17), (5, 12)


class Training:
    """Ranks that log numbers, print lines and now and then tell an event, until they are done."""

    def __init__(self, teller: Teller, launched: Launched, chance: random.Random) -> None:
        self._teller, self._launched, self._chance = teller, launched, chance
        self.reported: dict[tuple[int, int], float] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        step = 0
        while step < STEPS:
            rows = self._chance.randrange(1, 6)
            steps = range(step, min(STEPS, step + rows))
            for rank in range(RANKS):
                self.reported |= {(rank, each): each + rank / 10 for each in steps}
                self._teller.tell(rank, *((s, {"loss": s + rank / 10, "lr": 0.1}) for s in steps))
            self._launched.print(step % RANKS, "stdout", f"step {step}\n")
            if self._chance.random() < 0.1:
                self._teller.happens(step % RANKS, "custom", step, number=step)
            step += rows

    def is_done(self) -> bool:
        return not self._thread.is_alive() and self._teller.is_stored()

    def join(self) -> None:
        self._thread.join(PATIENCE)


class Visitor:
    """A client with nothing but its last cursor."""

    def __init__(self) -> None:
        self.cursor = "start"
        self.heard: list[dict[str, Any]] = []

    def visit(self, server: Server, count: int, kill: bool) -> None:
        """Listen to so many messages, or until the server dies in the middle of them."""
        with contextlib.suppress(ConnectionClosed, InvalidHandshake, OSError, TimeoutError):
            path = f"/api/jobs/{JOB}/stream?types=metric,event,state,log&after={self.cursor}"
            with listening(server, path, close_timeout=0.1) as client:  # it has not read all
                for number in range(count):
                    if kill and number == count // 2:
                        server.process.end()
                    self._hear(client.message(timeout=1.0))

    def rest(self, server: Server) -> None:
        """Listen until nothing has come for a while."""
        path = f"/api/jobs/{JOB}/stream?types=metric,event,state,log&after={self.cursor}"
        with contextlib.suppress(TimeoutError), listening(server, path) as client:
            while True:
                self._hear(client.message(timeout=2.0))

    def _hear(self, said: dict[str, Any]) -> None:
        self.heard.append(said)
        self.cursor = said["cursor"]

    def keys(self, kind: str, *names: str) -> list[tuple[Any, ...]]:
        """Return some values of every message of a type, in the order of the values."""
        return sorted(
            tuple(each[name] for name in names) for each in self.heard if each["type"] == kind
        )


def rows(home: Path, part: str, query: str) -> list[tuple[Any, ...]]:
    """Read one of the databases with nothing of ours between."""
    path = home / "plane" / f"{part}.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        return base.execute(query).fetchall()


@pytest.mark.parametrize("seed", [1])
def test_what_twenty_visits_heard_is_what_was_stored_and_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    chance, visitor = random.Random(seed), Visitor()
    with running(tmp_path) as plane, Teller(plane, JOB, RANKS) as teller:
        launched = Launched(plane, JOB, RANKS)
        server = plane.start_server()
        training = Training(teller, launched, random.Random(seed))
        for number in range(VISITS):
            if number in WEAVER_KILLS:
                _restart(plane)
            visitor.visit(server, chance.randrange(2, 300), number in KILLS)
            if number in KILLS:
                server.process.end()
                server = plane.start_server()
        training.join()
        until(training.is_done, PATIENCE)
        launched.write(AppState.SUCCEEDED)
        teller.ends("COMPLETED", "ranks_ended")
        visitor.rest(server)

        told = rows(plane.home, "records", f"select id from events where job = '{JOB}'")
        noted = rows(plane.home, "state", f"select seq from events where job = '{JOB}'")
        lines = launched.lines()

    expected = sorted((rank, step, value) for (rank, step), value in training.reported.items())
    assert visitor.keys("metric", "rank", "step", "loss") == expected
    events = [each for each in visitor.heard if each["type"] == "event"]
    from_ranks = sorted(each["seq"] for each in events if each["from"] == "rank")
    assert from_ranks == sorted(number for (number,) in told)
    from_weaver = [each["seq"] for each in events if each["from"] == "weaver"]
    states = [number for (number,) in visitor.keys("state", "seq")]
    assert sorted([*from_weaver, *states]) == sorted(number for (number,) in noted)
    assert visitor.keys("log", "rank", "stream", "message") == sorted(lines)


def _restart(plane: Plane) -> None:
    plane.weaver.end()
    plane.start_weaver()
