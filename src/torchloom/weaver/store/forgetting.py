"""Take what is stored of a job out of `records`, little by little: whoever stores does not wait.

Some rows go in a transaction, then there is a pause as long as that took. SQLite uses the room
again, and gives none back to the disk.
"""

import time
from collections.abc import Callable

import sqlalchemy as sa

from torchloom.weaver.store.engine import engine_of
from torchloom.weaver.store.place import Place
from torchloom.weaver.store.record_tables import (
    arrivals,
    chunks,
    events,
    received,
    series,
    spans,
)

ROWS = 1000  # of one transaction
HEAVY = 16  # where a row has thousands of points
_REST = 0.005  # seconds between two, at least


class Forgetting:
    """A way into `records` beside the one writer, for what nobody writes any more."""

    def __init__(self, place: Place, rest: Callable[[float], None] = time.sleep) -> None:
        self._engine = engine_of(place, "records")
        self._rest = rest

    def has_points(self, job: str) -> bool:
        """Tell whether there are metrics of a job."""
        mine = _of(job)
        with self._engine.connect() as connection:
            return any(
                connection.execute(sa.select(sa.literal(1)).where(which).limit(1)).first()
                for which in (arrivals.c.job == job, chunks.c.series.in_(mine))
            )

    def points(self, job: str) -> int:
        """Forget a job's metrics but not that there were such; return how many rows went.

        What came last goes first: it must not be merged into what has gone.
        """
        mine = _of(job)
        gone = self._clear(arrivals, arrivals.c.job == job, HEAVY)
        gone += self._clear(chunks, chunks.c.series.in_(mine), HEAVY)
        gone += self._clear(spans, spans.c.series.in_(mine), HEAVY)
        empty = {"number": 0, "loose": 0, "room": 0}
        self._write(sa.update(series).where(series.c.job == job).values(empty))
        return gone

    def job(self, job: str) -> int:
        """Forget all of a job; return how many rows went."""
        gone = self.points(job)
        return gone + sum(
            self._clear(table, table.c.job == job, ROWS) for table in (events, received, series)
        )

    def close(self) -> None:
        """Let the database go."""
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


def _of(job: str) -> sa.Select[tuple[int]]:
    return sa.select(series.c.id).where(series.c.job == job)
