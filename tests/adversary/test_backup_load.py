"""A backup of ten million points, while the plane's own commits go on: none waits for it."""

import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import DatabasePlace, NumberedBatch, PlaneStore, open_store
from torchloom.weaver.store.backup import read_manifest
from torchloom.weaver.store.rows import Fact

from ..harness import evidence
from ..harness.plane_jobs import LOOM

pytestmark = [pytest.mark.process, pytest.mark.soak]

SERIES, POINTS, AT_ONCE = 10, 1_000_000, 10_000
JOB = "many"
QUIET = 15.0  # seconds of commits without a backup, for comparison
EVERY = 0.005  # seconds between two commits
PROMISED = 20.0  # milliseconds, of the 99th percentile


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlaneStore]:
    """Give a plane's databases with ten million points."""
    opened, draw = open_store(DatabasePlace(tmp_path / "loom" / "plane")), random.Random(5)
    ingest, head = opened.ingest(), Head(VERSION, JOB, 0, 0, "life")
    names = tuple(f"m{number}" for number in range(SERIES))
    for number, first in enumerate(range(0, POINTS, AT_ONCE), 1):
        rows = tuple(
            (step, 1.7e9 + step / 10, *(draw.random() for _ in names))
            for step in range(first, first + AT_ONCE)
        )
        ingest.write([NumberedBatch(head, number, [Metrics(head, names, rows)])])
    ingest.close()
    yield opened
    opened.close()


class Commits:
    """Commits of both databases, one after the other, timed; as a weaver makes them."""

    def __init__(self, store: PlaneStore) -> None:
        self._store = store
        self._over = threading.Event()
        self.state: list[float] = []
        self.records: list[float] = []
        self._threads = [
            threading.Thread(target=self._repeat, args=(self._put, self.state)),
            threading.Thread(target=self._repeat, args=(self._write, self.records)),
        ]

    def __enter__(self) -> "Commits":
        self._ingest = self._store.ingest()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._ingest.close()

    def _repeat(self, act: object, took: list[float]) -> None:
        assert callable(act)
        number = 0
        while not self._over.wait(EVERY):
            number += 1
            began = time.perf_counter()
            act(number)
            took.append((time.perf_counter() - began) * 1e3)

    def _put(self, number: int) -> None:
        self._store.state.put(Fact("number", number))

    def _write(self, number: int) -> None:
        head = Head(VERSION, "meanwhile", 0, 0, str(id(self)))
        rows = tuple((number * 10 + step, time.time(), 0.5) for step in range(10))
        self._ingest.write([NumberedBatch(head, number, [Metrics(head, ("loss",), rows)])])


def quantiles(took: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(took, n=100)
    found = {"p50": cuts[49], "p99": cuts[98], "max": max(took)}
    return {name: round(value, 3) for name, value in found.items()}


def test_commits_wait_for_no_backup_of_ten_million_points(
    store: PlaneStore, tmp_path: Path
) -> None:
    with Commits(store) as quiet:
        time.sleep(QUIET)

    began = time.monotonic()
    with Commits(store) as meanwhile:
        env = {**os.environ, "LOOM_HOME": str(tmp_path / "loom"), "LOOM_DATABASE": ""}
        subprocess.run([LOOM, "backup", str(tmp_path / "copy.tar")], env=env, check=True)
        seconds = time.monotonic() - began

    samples = [
        {"database": name, "during_backup": during, "count": len(took), **quantiles(took)}
        for during, commits in ((False, quiet), (True, meanwhile))
        for name, took in (("state", commits.state), ("records", commits.records))
    ]
    evidence.write(
        "adversary-backup",
        samples,
        unit="ms of a commit",
        points=SERIES * POINTS,
        backup_seconds=round(seconds, 1),
        backup_bytes=(tmp_path / "copy.tar").stat().st_size,
        load=os.getloadavg(),
        promised_p99=PROMISED,
    )
    assert len(read_manifest(tmp_path / "copy.tar").files) == 2
    for during in samples[2:]:
        assert during["p99"] <= PROMISED, samples
