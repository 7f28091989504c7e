"""What follows `kill -9` of a rank, and when: docs/evidence/after-a-kill.json, drawn as a picture.

Processes are seen from outside: a pidfd and /proc for the rank that dies, its parent and that
one's new child. What ranks do is in files of their own. Only what the launch process and the
weaver decide is read from the run's events, whose times are whole milliseconds.
"""

import contextlib
import json
import os
import random
import select
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from torchloom.client import plane as door

from ..harness import evidence
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Plane, loom

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
SCRIPT = str(Path(__file__).with_name("after_a_kill.py"))
RANKS, KILLS, BETWEEN = 4, 21, 5  # steps between two kills
ORDER = (  # the one after the other, for each follows from the one before
    *("killed", "dead", "reaped", "loss_decided", "forked"),
    *("program", "set_up", "recovered", "first_begun", "all_done"),
)
Sample = dict[str, Any]


class Line(NamedTuple):
    """What a rank wrote."""

    what: str
    pid: int
    generation: int
    step: int
    at: int  # in nanoseconds


class Training:
    """Ranks that train until they are stopped, and what is known of them."""

    def __init__(self, out: Path) -> None:
        out.mkdir()
        words = ("-n", str(RANKS), "-e", f"OUT={out}", SCRIPT)
        self.id: str = json.loads(loom("run", "--json", *words))["id"]
        self._run = Path(os.environ["LOOM_HOME"], "runs", self.id)
        self._out = out
        until(lambda: any(one["is_live"] for one in self.launched("watched")), PATIENCE)
        self.passes(generation=0)

    def lines(self, rank: int) -> list[Line]:
        path = self._out / f"rank-{rank}"
        whole = path.read_text() if path.exists() else ""
        words = [line.split() for line in whole.split("\n")[:-1]]
        return [Line(what, *map(int, rest)) for what, *rest in words]

    def pid(self, rank: int) -> int:
        return self.lines(rank)[-1].pid

    def passes(self, generation: int) -> None:
        """Come back when each rank has done some steps of a generation."""

        def done(rank: int) -> int:
            lines = self.lines(rank)
            return sum((one.what, one.generation) == ("done", generation) for one in lines)

        until(lambda: all(done(rank) >= BETWEEN for rank in range(RANKS)), PATIENCE)

    def launched(self, kind: str) -> list[dict[str, Any]]:
        """Return what the launch process has noted of a kind."""
        path = self._run / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == kind]

    def decided(self, kind: str, generation: int) -> dict[str, Any]:
        """Return the weaver's event of a kind about a generation."""
        found = door.ask("events", job=self.id, kinds=[kind], limit=10000)["items"]
        of = [one for one in found if one["kind"] == kind]
        (event,) = [one for one in of if one["facts"]["generation"] == generation]
        return dict(event)


@pytest.fixture
def load() -> float:
    """Return the load average of the last minute, before anything of this test has started."""
    return os.getloadavg()[0]


@pytest.fixture
def training(load: float, plane: Plane, warm: None, tmp_path: Path) -> Iterator[Training]:
    """Give a training; stop it afterwards."""
    found = Training(tmp_path / "job")
    yield found
    loom("stop", "--now", found.id)


def test_what_follows_a_kill_follows_in_order(training: Training) -> None:
    sample = kill(training, victim=1, generation=1)

    assert disorder(sample) == []


@pytest.mark.soak
def test_the_trace_that_the_picture_is_drawn_from(training: Training, load: float) -> None:
    chance = random.Random(0)

    samples = [kill(training, chance.randrange(RANKS), number + 1) for number in range(KILLS)]

    assert [wrong for sample in samples for wrong in disorder(sample)] == []
    facts = {
        "kills": KILLS,
        "ranks": RANKS,
        "unit": "ms since the kill",
        "load": round(load, 2),  # before
        "load_after": round(os.getloadavg()[0], 2),  # that of the four ranks included
    }
    median = statistics.median(sample["all_done"] for sample in samples)
    evidence.write("after-a-kill", samples, **facts, median=median)


def disorder(sample: Sample) -> list[tuple[str, str]]:
    """Return which moments came before those that they follow from.

    A moment that is seen from outside may be noted late, by as long as the observer did not look.
    """
    late = sample["blind"] + 1.0
    pairs = (*pairwise(ORDER), ("reaped", "exit_noted"))  # the note is written beside the report
    return [(one, two) for one, two in pairs if sample[one] > sample[two] + late]


def kill(training: Training, victim: int, generation: int) -> Sample:
    """Kill a rank; return when what followed happened, in milliseconds since the kill."""
    before = [training.pid(rank) for rank in range(RANKS)]
    seen, blind = observed(before[victim])
    training.passes(generation)
    after = [training.pid(rank) for rank in range(RANKS)]
    replaced = [rank for rank in range(RANKS) if before[rank] != after[rank]]
    assert replaced == [victim]  # the other processes are those that they were

    seen |= decisions(training, before[victim], generation)
    ranks = [moments(training.lines(rank), after[rank], generation) for rank in range(RANKS)]
    seen["program"], seen["set_up"] = ranks[victim]["main"], ranks[victim]["ready"]
    seen["first_begun"] = min(one["begun"] for one in ranks)
    seen["all_done"] = max(one["done"] for one in ranks)
    since = partial(milliseconds, seen["killed"])
    of_ranks = {str(rank): since(one) for rank, one in enumerate(ranks)}
    return {"victim": victim, "blind": blind, **since(seen), "of_ranks": of_ranks}


def milliseconds(killed: int, moments: Mapping[str, int]) -> dict[str, float]:
    return {name: round((at - killed) / 1e6, 3) for name, at in moments.items()}


def decisions(training: Training, pid: int, generation: int) -> dict[str, int]:
    """Return when the launch process noted a rank's exit, and when the weaver decided what."""
    (noted,) = [one for one in training.launched("exit") if one["pid"] == pid]
    found = {
        "exit_noted": noted,
        "loss_decided": training.decided("regrouping", generation),
        "recovered": training.decided("recovered", generation),
    }
    stamps = {name: datetime.fromisoformat(one["time"]) for name, one in found.items()}
    return {name: round(stamp.timestamp() * 1e3) * 10**6 for name, stamp in stamps.items()}


def moments(lines: list[Line], pid: int, generation: int) -> dict[str, int]:
    """Return when a process did its first step of a generation, and what came right before it.

    Of a newcomer that is `main` and `ready`, of a survivor the last step that it had `done` and
    where the next one was `broken`.
    """
    own = [line for line in lines if line.pid == pid]
    begun, done = (
        next(one.at for one in own if (one.what, one.generation) == (what, generation))
        for what in ("begun", "done")
    )
    found = {one.what: one.at for one in own if one.at < begun and one.what != "begun"}
    if "done" in found:  # it lived before; its own beginning is not of this kill
        found = {"last_done": found["done"]} | _newest(own, begun)
    return found | {"begun": begun, "done": done}


def _newest(own: list[Line], begun: int) -> dict[str, int]:
    """Return when the step that was under way was broken off, if it was within its block."""
    before = [one for one in own if one.at < begun]
    return {"broken": before[-1].at} if before[-1].what == "broken" else {}


def observed(victim: int) -> tuple[dict[str, int], float]:
    """Kill a process and look at it and at its parent until there is a new child.

    Return when what was seen, and the longest time between two looks in ms.
    """
    keeper, pidfd, poll = parent_of(victim), os.pidfd_open(victim), select.poll()
    before = children_of(keeper)
    poll.register(pidfd, select.POLLIN)
    with urgent():
        seen = {"killed": time.time_ns()}
        os.kill(victim, signal.SIGKILL)
        poll.poll(PATIENCE * 1000)
        seen["dead"] = look = time.time_ns()
        blind = 0
        while len(seen) < 4 and look < seen["killed"] + PATIENCE * 1e9:
            if "reaped" not in seen and not is_there(victim):
                seen["reaped"] = time.time_ns()
            if "forked" not in seen and children_of(keeper) - before:
                seen["forked"] = time.time_ns()
            time.sleep(0.0003)
            blind, look = max(blind, time.time_ns() - look), time.time_ns()
    os.close(pidfd)
    return seen, round(blind / 1e6, 3)


@contextlib.contextmanager
def urgent() -> Iterator[None]:
    """Run before everything else on the machine, where that is allowed: it is short."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def is_there(pid: int) -> bool:
    """Tell whether a process exists; one that has ended does until its parent has reaped it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
