"""Read `records`: curves, events, and up to which number each process has stored records."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from torchloom.weaver.store.engine import engine_of
from torchloom.weaver.store.place import DatabasePlace
from torchloom.weaver.store.rows import PointRow, RankEventRow, Received
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.tables import (
    RecordsSnapshot,
    arrivals,
    chunks,
    connected,
    events,
    received,
    series,
    snapshot,
    spans,
)

ROWS = 1000  # of one transaction
HEAVY = 16  # where a row has thousands of points
_REST = 0.005  # seconds between two, at least


class RecordRemoval:
    """Removes records of ended jobs, beside the one writer."""

    def __init__(self, place: DatabasePlace, rest: Callable[[float], None] = time.sleep) -> None:
        self._engine = engine_of(place, "records")
        self._rest = rest

    def has_points(self, job: str) -> bool:
        """Tell whether there are metrics of a job."""
        mine = _series_of(job)
        with self._engine.connect() as connection:
            return any(
                connection.execute(sa.select(sa.literal(1)).where(which).limit(1)).first()
                for which in (arrivals.c.job == job, chunks.c.series.in_(mine))
            )

    def points(self, job: str) -> int:
        """Remove the points of a job's metrics, not their names; return the number of rows.

        What came last goes first: it must not be merged into what has gone.
        """
        mine = _series_of(job)
        gone = self._clear(arrivals, arrivals.c.job == job, HEAVY)
        gone += self._clear(chunks, chunks.c.series.in_(mine), HEAVY)
        gone += self._clear(spans, spans.c.series.in_(mine), HEAVY)
        empty = {"number": 0, "loose": 0, "room": 0}
        self._write(sa.update(series).where(series.c.job == job).values(empty))
        return gone

    def job(self, job: str) -> int:
        """Remove all records of a job; return the number of rows."""
        gone = self.points(job)
        return gone + sum(
            self._clear(table, table.c.job == job, ROWS) for table in (events, received, series)
        )

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _clear(self, table: sa.Table, which: sa.ColumnElement[bool], most: int) -> int:
        keys = list(table.primary_key.columns)
        some = sa.select(*keys).where(which).limit(most)
        statement = sa.delete(table).where(sa.tuple_(*keys).in_(some))
        gone = 0
        while True:
            began = time.monotonic()
            rows = self._write(statement)
            gone += rows
            if rows < most:
                return gone
            self._rest(max(_REST, time.monotonic() - began))

    def _write(self, statement: sa.Delete | sa.Update) -> int:
        with self._engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin():
                return connection.execute(statement).rowcount


def _series_of(job: str) -> sa.Select[tuple[int]]:
    return sa.select(series.c.id).where(series.c.job == job)


class RecordStore:
    """Queries of `records`, which only `RecordWriter` writes.

    What more there is to ask of metrics is in `curves`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def snapshot(self) -> AbstractContextManager[RecordsSnapshot]:
        """Return a snapshot of the database."""
        return snapshot(self._engine)

    def names(self, job: str) -> list[str]:
        """Return the names of a job's metrics."""
        return curves.names(self, job)

    def points(
        self,
        job: str,
        name: str | None = None,
        rank: int | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[PointRow]:
        """Return curves by name, rank and step; of the steps after one, the newest `limit` each.

        Where several generations did one step, the highest is shown.
        """
        names, ranks = None if name is None else {name}, None if rank is None else {rank}
        first = None if after is None else after + 1
        return curves.newest(self, job, names, ranks, first, limit)

    def latest(self, job: str) -> list[PointRow]:
        """Return the newest point of every series of a job."""
        return curves.last(self, job)

    def events(
        self, job: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[RankEventRow]:
        """Return the events of ranks and agents after a number, in the order of arrival."""
        query = sa.select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
        return [RankEventRow(**row._mapping) for row in self._read(_of(query, events, job))]

    def last_events(
        self, job: str | None = None, limit: int = 100, kinds: Sequence[str] = ()
    ) -> list[RankEventRow]:
        """Return the newest events, oldest first: of some kinds, or of all."""
        query = _of(sa.select(events).order_by(events.c.id.desc()).limit(limit), events, job)
        query = query.where(events.c.kind.in_(kinds)) if kinds else query
        return [RankEventRow(**row._mapping) for row in reversed(self._read(query))]

    def received(self, job: str | None = None) -> list[Received]:
        """Return up to which number the records of each process are stored."""
        keys = received.primary_key.columns
        query = _of(sa.select(received).order_by(*keys), received, job)
        return [Received(**row._mapping) for row in self._read(query)]

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _read(self, query: sa.Select[Any]) -> Sequence[Any]:
        with connected(self._engine) as connection:
            return connection.execute(query).all()


def _of(query: sa.Select[Any], table: sa.Table, job: str | None) -> sa.Select[Any]:
    return query if job is None else query.where(table.c.job == job)
