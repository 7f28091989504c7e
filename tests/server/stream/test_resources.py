"""What ranks of this host use, measured of processes that this test starts."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.server.stream.sources import Meters
from torchloom.weaver.store.rows import RankProcessRow

from ...harness.home import until

pytestmark = pytest.mark.process


@pytest.fixture
def busy() -> Iterator[int]:
    """Run a process that computes all the time and holds 50 MB."""
    words = "kept = bytearray(50_000_000); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def rank_of(pid: int, started: str | None = None) -> RankProcessRow:
    here = ProcessIdentity.of(pid)
    assert here is not None
    return RankProcessRow(
        "j", "trainer", 3, 0, "life", node="n1", pid=pid, started=int(started or here.started)
    )


def test_a_rank_that_computes_is_seen_to(busy: int) -> None:
    meters, rank = Meters(), rank_of(busy)
    meters.measure("j", [rank])
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 0.5)

    (draft,) = meters.measure("j", [rank], now=1767225600.25)

    body = dict(draft.body)
    assert body.pop("cpu") > 10.0
    assert 50_000_000 < body.pop("memory") < 500_000_000
    assert body == {
        "type": "resource",
        "gpu": [],
        "seq": 1767225600250,
        "time": "2026-01-01T00:00:00.250+00:00",
        "rank": 3,
        "role": "trainer",
        "node": "n1",
        "job": "j",
    }
    assert (draft.kind, draft.move) == ("resource", {})


def test_nobody_is_measured_for_a_rank_of_another_host_with_its_number() -> None:
    assert Meters().measure("j", [rank_of(os.getpid(), started="5")]) == []
