"""The database is struck: a plane that keeps all it knows in Postgres goes on with it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from torchloom.chaos.faults import processes

from ..harness.chaos_training import all_is_well, same_books
from ..harness.plane_jobs import PATIENCE
from ..harness.postgres_server import new_database, running_postgres
from .conftest import Quiet, Start

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD, STEPS, PACE = 2, 300, 0.08
FAULTS = [
    {"kind": "kill-postgres", "lasts": 0.5},
    {"kind": "kill", "rank": 1},
    {"kind": "kill-postgres", "lasts": 1.0},
    {"kind": "kill-weaver"},
]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Run a server for the plane; where there is none the tests are skipped, or fail under CI."""
    with running_postgres() as url, reaped(url):
        yield new_database(url, "plane")


@contextlib.contextmanager
def reaped(url: str) -> Iterator[None]:
    """Wait for a server of ours, so that another can take its place; end whoever did at last."""
    first = processes.listener(url)
    assert first is not None
    reaper = threading.Thread(target=os.waitpid, args=(first.pid, 0))
    reaper.start()
    yield
    if (last := processes.listener(url)) is not None:
        last.send(signal.SIGQUIT)
        last.wait_exit(PATIENCE)
    reaper.join(PATIENCE)


def test_a_database_that_is_killed_costs_nothing(start: Start, undisturbed: Quiet) -> None:
    calm = undisturbed(WORLD, STEPS)
    job = start(WORLD, STEPS, pace=PACE).ready()

    report = job.strike(FAULTS, 2.5, calm.digests)
    job.ends()

    all_is_well(report, FAULTS)
    same_books(job.books(), calm.books())
