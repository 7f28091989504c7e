"""Read `records`: curves, events, and how far each life's records are stored."""

import math
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from torchloom.weaver.store.record_tables import events, metrics, received, series
from torchloom.weaver.store.rows import Point, Received, Told


class RecordStore:
    """What readers ask of `records`; it is written by `RecordWriter` alone."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def names(self, job: str) -> list[str]:
        """Return what a job's metrics are called."""
        query = sa.select(series.c.name).where(series.c.job == job).distinct()
        return [row[0] for row in self._read(query.order_by(series.c.name))]

    def points(
        self,
        job: str,
        name: str | None = None,
        rank: int | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[Point]:
        """Return curves by name, rank and step; of the steps after one, the newest `limit` each.

        Where several generations did one step, the highest is shown.
        """
        found = []
        for key, *its in self._series(job, name, rank):
            query = _shown(key)
            if after is not None:
                query = query.where(metrics.c.step > after)
            query = query.order_by(metrics.c.step.desc())
            rows = self._read(query if limit is None else query.limit(limit))
            found += [_point(row, *its) for row in reversed(rows)]
        return found

    def latest(self, job: str) -> list[Point]:
        """Return the newest point of every series of a job."""
        return self.points(job, limit=1)

    def events(self, job: str | None = None, after: int = 0, limit: int = 1000) -> list[Told]:
        """Return what ranks and agents told after a number, in the order of its arrival."""
        query = sa.select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
        return [Told(**row._mapping) for row in self._read(_of(query, events, job))]

    def last_events(self, job: str | None = None, limit: int = 100) -> list[Told]:
        """Return the newest of what was told, oldest first."""
        query = _of(sa.select(events).order_by(events.c.id.desc()).limit(limit), events, job)
        return [Told(**row._mapping) for row in reversed(self._read(query))]

    def received(self, job: str | None = None) -> list[Received]:
        """Return how far each life's records are stored."""
        keys = received.primary_key.columns
        query = _of(sa.select(received).order_by(*keys), received, job)
        return [Received(**row._mapping) for row in self._read(query)]

    def close(self) -> None:
        """Let the database go."""
        self._engine.dispose()

    def _series(self, job: str, name: str | None, rank: int | None) -> Sequence[Any]:
        columns = (series.c.id, series.c.name, series.c.rank, series.c.role)
        query = sa.select(*columns).where(series.c.job == job)
        if name is not None:
            query = query.where(series.c.name == name)
        if rank is not None:
            query = query.where(series.c.rank == rank)
        return self._read(query.order_by(series.c.name, series.c.rank, series.c.role))

    def _read(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()


def _shown(key: int) -> sa.Select[Any]:
    other = metrics.alias()
    highest = (
        sa.select(sa.func.max(other.c.generation))
        .where(other.c.series == metrics.c.series, other.c.step == metrics.c.step)
        .scalar_subquery()
    )
    columns = (metrics.c.step, metrics.c.generation, metrics.c.time, metrics.c.value)
    return sa.select(*columns).where(metrics.c.series == key, metrics.c.generation == highest)


def _point(row: Any, name: str, rank: int, role: str) -> Point:
    value = math.nan if row.value is None else row.value
    return Point(name, rank, row.step, row.generation, row.time, value, role)


def _of(query: sa.Select[Any], table: sa.Table, job: str | None) -> sa.Select[Any]:
    return query if job is None else query.where(table.c.job == job)
