"""One moment of `records`, for a reader who asks more than once."""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import sqlalchemy as sa

from torchloom.errors import Failure


class RecordsLost(Failure):
    """The records of ranks cannot be read now."""

    code = "records_lost"


class Snapshots(Protocol):
    """A source of snapshots."""

    def snapshot(self) -> AbstractContextManager["RecordsSnapshot"]: ...


class RecordsSnapshot:
    """What is stored at one moment; words have a `?` for each value."""

    def __init__(self, cursor: Any, mark: str) -> None:
        self._cursor = cursor
        self._mark = mark

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]:
        self._cursor.execute(words.replace("?", self._mark), values)
        found: Sequence[Sequence[Any]] = self._cursor.fetchall()
        return found


@contextlib.contextmanager
def snapshot(engine: sa.Engine) -> Iterator[RecordsSnapshot]:
    """Yield one moment; what is written meanwhile is not seen."""
    with connected(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        connection.begin()
        driver: Any = connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            with driver.cursor(binary=True) as cursor:
                yield RecordsSnapshot(cursor, "%s")
            return
        if not driver.in_transaction:
            driver.execute("BEGIN")
        yield RecordsSnapshot(driver.cursor(), "?")


@contextlib.contextmanager
def connected(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a connection; what its driver says in anger is said in our words."""
    driver: Any = engine.dialect.loaded_dbapi
    try:
        with engine.connect() as connection:
            yield connection
    except (sa.exc.DBAPIError, driver.Error) as error:
        why = str(getattr(error, "orig", None) or error).strip()
        raise RecordsLost(f"the records database does not do as asked: {why}") from error
