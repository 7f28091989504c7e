"""Whoever of a training over two hosts is killed, whenever: it recovers within its restarts."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import pytest

from ...harness.home import until
from ...harness.host_launches import Launches, command_line, parent_of
from .evidence import teller, write
from .killing import HOSTS, LIMIT, PHASES, RANKS, Kill, Session, survive

pytestmark = pytest.mark.needs("torch")
WARM, COLD = {"LOOM_WARM": "1"}, {"LOOM_WARM": "0"}
KEEPER = Kill(0, "keeper n1", "init", 0.0, 1)


@pytest.fixture
def trainings(launches: Launches) -> Iterator[Launches]:
    """Give launches that may leave a warm interpreter on each host; it is ended afterwards."""
    yield launches
    launches.end_zygotes()


def hits(samples: Sequence[dict[str, Any]]) -> Counter[str]:
    """Count by phase the kills of which the rank itself says that it was in it."""
    return Counter(each["phase"] for each in samples if each["during"] == each["phase"])


def test_ten_kills_are_survived(trainings: Launches) -> None:
    samples = survive(trainings, range(10), 5, WARM)

    assert [sample["seed"] for sample in samples] == list(range(10))
    assert hits(samples).keys() == set(PHASES)
    assert hits(samples).total() >= 8


def test_a_host_that_still_warms_up_does_so_whoever_is_killed_meanwhile(
    trainings: Launches,
) -> None:
    session = Session(trainings, trainings.folder / "session", WARM)
    session.start(restarts=1, late=1)
    zygote = found(lambda: zygote_on(trainings, "n2"))
    os.kill(zygote, signal.SIGSTOP)
    session.until(lambda: session.has_said(0, "init"))

    os.kill(found(lambda: session.victim(KEEPER)), signal.SIGKILL)
    session.attempt = 1
    session.until(lambda: session.has_said(0, "import"))
    os.kill(zygote, signal.SIGCONT)
    session.until(lambda: session.has_said(2, "first_step"))

    pids = [trainings.number_of("n2", session.said(rank)[-1].pid) for rank in (2, 3)]
    parents = {command_line(parent_of(pid)) for pid in pids if pid}
    session.end()
    assert parents == {f"loom-keeper {trainings.app_id}"}
    assert {said.attempt for rank in (2, 3) for said in session.said(rank)} == {1}


def zygote_on(launches: Launches, host: str) -> int | None:
    """Return the zygote on a host once it has left whoever started it."""
    words, agent = "torchloom.worker.process.zygote", launches.tree(host).get("agent")
    pids = [pid for pid, said in launches.processes(host).items() if words in said]
    return next((pid for pid in pids if parent_of(pid) not in {agent, *pids}), None)


def found(look: Callable[[], int | None]) -> int:
    """Return the process that is looked for, when it is there."""
    seen: list[int] = []

    def sees() -> bool:
        pid = look()
        seen.extend([pid] if pid else [])
        return bool(seen)

    until(sees, LIMIT)
    return seen[0]


@pytest.mark.soak
def test_a_hundred_kills_are_survived(
    trainings: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    tell = teller(capsys)
    warm, cold = range(50), range(50, 100)

    samples = [{**each, "warm": True} for each in survive(trainings, warm, 3, WARM, tell)]
    samples += [{**each, "warm": False} for each in survive(trainings, cold, 3, COLD, tell)]

    assert [sample["seed"] for sample in samples] == list(range(100))
    assert min(hits(samples)[phase] for phase in PHASES) >= 8
    write("launch-kills", summary(samples), samples)


def summary(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the kills come to; the samples behind it follow in the file."""
    seconds = {
        start: [each["seconds"] for each in samples if each["warm"] == is_warm]
        for start, is_warm in (("warm", True), ("cold", False))
    }
    return {
        "recovered": len(samples),
        "of": 100,
        "hosts": len(HOSTS),
        "ranks": RANKS,
        "hit_during": dict(Counter(each["during"] for each in samples)),
        "victims": dict(sorted(Counter(each["victim"] for each in samples).items())),
        "median_seconds": {start: round(median(each), 3) for start, each in seconds.items()},
        "slowest_seconds": {start: max(each) for start, each in seconds.items()},
    }
