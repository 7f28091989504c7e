"""The tables of `records`: what ranks and agents reported, of all generations.

docs/internals/metrics.md describes how a curve is stored in them.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import sqlalchemy as sa

from torchloom.errors import Failure
from torchloom.weaver.store.engine import JsonText, Number, TextColumn

METADATA = sa.MetaData()
LOOSE, SEALED, HIDDEN = 0, 1, 2  # kinds of chunks: as it came; by step; not shown


class Sql(Protocol):
    """A transaction; words have a `?` for each value."""

    append: str  # an expression: `data` followed by a value

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]: ...
    def many(self, words: str, values: Iterable[Sequence[Any]]) -> None: ...


def marks(count: int) -> str:
    """Return so many `?` for a list."""
    return ",".join("?" * count)


series = sa.Table(
    "series",
    METADATA,
    sa.Column("id", Number, primary_key=True),
    sa.Column("job", TextColumn, nullable=False),
    sa.Column("name", TextColumn, nullable=False),
    sa.Column("rank", Number, nullable=False),
    sa.Column("role", TextColumn, nullable=False, server_default=""),
    # For the writer: its chunks are numbered up to here, points in loose ones, in the last of them.
    sa.Column("number", Number, nullable=False, server_default="0"),
    sa.Column("loose", Number, nullable=False, server_default="0"),
    sa.Column("room", Number, nullable=False, server_default="0"),
    sa.Index("series_by_name", "job", "name", "rank", "role", unique=True),
)
arrivals = sa.Table(
    "arrivals",
    METADATA,
    sa.Column("number", Number, primary_key=True, autoincrement=False),
    sa.Column("job", TextColumn, nullable=False),
    sa.Column("points", Number, nullable=False),
    sa.Column("size", Number, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("arrivals_by_job", "job", "number"),
)
progress = sa.Table(
    "progress",
    METADATA,
    sa.Column("id", Number, primary_key=True, autoincrement=False),
    sa.Column("last", Number, nullable=False),  # the newest arrival
    sa.Column("merged", Number, nullable=False),  # those up to this one are in chunks
    sa.Column("waiting", Number, nullable=False),  # how much those beyond weigh
    sa.Column("dropped", Number, nullable=False),  # those up to this one are kept no more
)
chunks = sa.Table(
    "chunks",
    METADATA,
    sa.Column("series", Number, primary_key=True, autoincrement=False),
    sa.Column("number", Number, primary_key=True, autoincrement=False),
    sa.Column("kind", Number, nullable=False),
    sa.Column("first", Number, nullable=False),  # steps of a sealed one
    sa.Column("last", Number, nullable=False),
    sa.Column("count", Number, nullable=False),
    sa.Column("since", Number, nullable=False),  # the first arrival that is in it
    sa.Column("upto", Number, nullable=False),  # the last one
    sa.Column("whole", sa.LargeBinary),  # one bucket
    sa.Column("coarse", sa.LargeBinary),  # a bucket for 256 points
    sa.Column("fine", sa.LargeBinary),  # a bucket for 16 points
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("chunks_by_step", "series", "kind", "first", "last", "count", "number"),
)
spans = sa.Table(
    "spans",
    METADATA,
    sa.Column("series", Number, primary_key=True, autoincrement=False),
    sa.Column("first", Number, primary_key=True, autoincrement=False),
    sa.Column("last", Number, nullable=False),
    sa.Column("chunks", Number, nullable=False),
    sa.Column("count", Number, nullable=False),
    sa.Column("coarse", sa.LargeBinary, nullable=False),  # a bucket for 16 chunks
    sa.Column("fine", sa.LargeBinary, nullable=False),  # a bucket for each chunk
)
events = sa.Table(
    "events",
    METADATA,
    sa.Column("id", Number, primary_key=True),
    sa.Column("job", TextColumn, nullable=False),
    sa.Column("rank", Number, nullable=False),
    sa.Column("generation", Number, nullable=False),
    sa.Column("incarnation", TextColumn, nullable=False),
    sa.Column("number", Number, nullable=False),
    sa.Column("kind", TextColumn, nullable=False),
    sa.Column("step", Number, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("facts", JsonText, nullable=False),
    sa.Index("events_once", "job", "rank", "incarnation", "number", unique=True),
    sa.Index("events_by_job", "job", "id"),
)
received = sa.Table(
    "received",
    METADATA,
    sa.Column("job", TextColumn, primary_key=True),
    sa.Column("rank", Number, primary_key=True, autoincrement=False),
    sa.Column("incarnation", TextColumn, primary_key=True),
    sa.Column("upto", Number, nullable=False),
    sa.Column("dropped", Number, nullable=False),
)


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
    """Yield a connection; errors of its driver become `RecordsLost`."""
    driver: Any = engine.dialect.loaded_dbapi
    try:
        with engine.connect() as connection:
            yield connection
    except (sa.exc.DBAPIError, driver.Error) as error:
        why = str(getattr(error, "orig", None) or error).strip()
        raise RecordsLost(f"the records database failed: {why}") from error
