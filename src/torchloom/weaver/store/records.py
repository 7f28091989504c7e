"""Read `records`: curves, events, and how far each life's records are stored."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from torchloom.weaver.store import curves
from torchloom.weaver.store.record_tables import events, received
from torchloom.weaver.store.rows import Point, Received, Told
from torchloom.weaver.store.snapshot import Snapshot, connected, snapshot


class RecordStore:
    """What readers ask of `records`; it is written by `RecordWriter` alone.

    What more there is to ask of metrics is in `curves`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return one moment of the database."""
        return snapshot(self._engine)

    def names(self, job: str) -> list[str]:
        """Return what a job's metrics are called."""
        return curves.names(self, job)

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
        names, ranks = None if name is None else {name}, None if rank is None else {rank}
        first = None if after is None else after + 1
        return curves.newest(self, job, names, ranks, first, limit)

    def latest(self, job: str) -> list[Point]:
        """Return the newest point of every series of a job."""
        return curves.last(self, job)

    def events(self, job: str | None = None, after: int = 0, limit: int = 1000) -> list[Told]:
        """Return what ranks and agents told after a number, in the order of its arrival."""
        query = sa.select(events).where(events.c.id > after).order_by(events.c.id).limit(limit)
        return [Told(**row._mapping) for row in self._read(_of(query, events, job))]

    def last_events(
        self, job: str | None = None, limit: int = 100, kinds: Sequence[str] = ()
    ) -> list[Told]:
        """Return the newest events, oldest first: of some kinds, or of all."""
        query = _of(sa.select(events).order_by(events.c.id.desc()).limit(limit), events, job)
        query = query.where(events.c.kind.in_(kinds)) if kinds else query
        return [Told(**row._mapping) for row in reversed(self._read(query))]

    def received(self, job: str | None = None) -> list[Received]:
        """Return how far each life's records are stored."""
        keys = received.primary_key.columns
        query = _of(sa.select(received).order_by(*keys), received, job)
        return [Received(**row._mapping) for row in self._read(query)]

    def close(self) -> None:
        """Let the database go."""
        self._engine.dispose()

    def _read(self, query: sa.Select[Any]) -> Sequence[Any]:
        with connected(self._engine) as connection:
            return connection.execute(query).all()


def _of(query: sa.Select[Any], table: sa.Table, job: str | None) -> sa.Select[Any]:
    return query if job is None else query.where(table.c.job == job)
