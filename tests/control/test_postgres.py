"""A plane that keeps everything in Postgres: a job is watched and changed there all the same."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..harness import metric_rows as metrics
from ..harness.home import until
from ..harness.plane_jobs import PATIENCE, Job, Plane
from ..harness.postgres_server import new_database, running_postgres

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]
WORLD = 2
COMMANDS = "select state, effective from state.commands where job = %s order by number"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Run a server for the plane; where there is none the tests are skipped, or fail under CI."""
    with running_postgres() as url:
        yield new_database(url, "plane")


def read(url: str, words: str, job: Job) -> list[tuple[Any, ...]]:
    """Ask the database with nothing of ours between."""
    import psycopg

    with psycopg.connect(url) as connection:
        return connection.execute(words.encode(), (job.id,)).fetchall()


def points(url: str, job: Job) -> dict[tuple[str, int, int], float]:
    """Return what the database shows of two series: by name, rank and step."""
    import psycopg

    with psycopg.connect(url) as connection:
        found = metrics.shown(connection, "records.")
    return {
        (name, rank, step): point.value
        for (of, name, rank, _, step), point in found.items()
        if of == job.id and name in ("loss", "half")
    }


def test_a_weaver_is_killed_and_postgres_has_every_point_and_every_change(
    plane: Plane, database: str, start: Callable[..., Job]
) -> None:
    files = Path(os.environ["LOOM_HOME"], "plane").glob("*.db*")
    before = {path: path.stat().st_mtime_ns for path in files}
    job = start("logged.py", WORLD).ready()

    first = job.set({"lr": 0.02})
    plane.back("weaver", plane.kill("weaver"))
    second = job.set({"lr": 0.03})
    job.passes(20)
    last = job.stop()

    logged = {
        (name, rank, row.step): value
        for rank in range(WORLD)
        for row in job.rows(rank)
        for name, value in row.used.items()
    }
    until(lambda: len(points(database, job)) >= len(logged), PATIENCE)
    assert points(database, job) == logged
    steps = (first["effective_step"], second["effective_step"], last)
    assert read(database, COMMANDS, job) == [("applied", step) for step in steps]
    files = Path(os.environ["LOOM_HOME"], "plane").glob("*.db*")
    assert {path: path.stat().st_mtime_ns for path in files} == before
