"""Where stores of tests are: two SQLite files, or a database of its own on a real Postgres."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.weaver.store import DatabasePlace, PlaneStore, open_store

from ..harness.fresh_databases import fresh
from ..harness.postgres_server import new_database, running_postgres

_COUNT = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Run one server for all tests; where there is none the test is skipped, or fails under CI."""
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def made_database(postgres: str) -> str:
    """Return the name of a database as a first start makes it, for others to be copies of."""
    open_store(DatabasePlace(None, new_database(postgres, "made"))).close()
    return "made"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> DatabasePlace:
    """Return a place for a store, of each kind: empty, or made where the test gets it opened."""
    is_made = "store" in request.fixturenames
    if request.param == "sqlite":
        return fresh(tmp_path / "plane") if is_made else DatabasePlace(tmp_path / "plane")
    url, name = request.getfixturevalue("postgres"), f"test_{next(_COUNT)}"
    like = request.getfixturevalue("made_database") if is_made else "template1"
    return DatabasePlace(None, new_database(url, name, like))


@pytest.fixture
def store(place: DatabasePlace) -> Iterator[PlaneStore]:
    """Open a store at each kind of place."""
    opened = open_store(place)
    yield opened
    opened.close()
