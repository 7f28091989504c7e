"""Write a sheet into Postgres: points by COPY into a staging table, then over in one statement."""

from typing import Any

from torchloom.weaver.store.engine import connect_postgres
from torchloom.weaver.store.sheet import Life, Numbered, SeriesName, Sheet

_STAGING = (
    "CREATE TEMPORARY TABLE staged (series bigint, step bigint, generation bigint,"
    " time double precision, value double precision) ON COMMIT DELETE ROWS"
)
_CLAIM = "INSERT INTO received VALUES (%s, %s, %s, 0, 0) ON CONFLICT DO NOTHING"
_UPTO = "SELECT upto FROM received WHERE job = %s AND rank = %s AND incarnation = %s FOR UPDATE"
_NEW_SERIES = (
    "INSERT INTO series (job, name, rank, role) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
)
_SERIES = "SELECT id FROM series WHERE job = %s AND name = %s AND rank = %s AND role = %s"
_COPY = "COPY staged (series, step, generation, time, value) FROM STDIN (FORMAT BINARY)"
_TYPES = ("int8", "int8", "int8", "float8", "float8")
_POINTS = (
    "INSERT INTO metrics (series, step, generation, time, value) SELECT * FROM staged"
    " ON CONFLICT (series, step, generation)"
    " DO UPDATE SET time = excluded.time, value = excluded.value"
)
_EVENTS = (
    "INSERT INTO events (job, rank, generation, incarnation, number, kind, step, time, facts)"
    " VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s)"
)
_RECEIVED = (
    "UPDATE received SET upto = %s, dropped = dropped + %s"
    " WHERE job = %s AND rank = %s AND incarnation = %s"
)


class PostgresIngest:
    """One connection that writes the schema `records`; made anew when the server went away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None
        self._series: dict[SeriesName, int] = {}

    def write(self, batches: list[Numbered]) -> list[int]:
        """Store batches in one transaction; return up to where each one's life is stored now."""
        connection = self._connected()
        try:
            with connection.transaction(), connection.cursor() as cursor:
                # In one order everywhere, so that two writers wait instead of locking each other.
                lives = sorted({batch.life for batch in batches})
                sheet = Sheet({life: _upto(cursor, life) for life in lives})
                answers = [sheet.add(batch) for batch in batches]
                self._store(cursor, sheet)
        except BaseException:
            self.close()
            raise
        return answers

    def close(self) -> None:
        """Let the database go."""
        self._series.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = connect_postgres(self._url, "records")
            self._connection.autocommit = True
            self._connection.execute(_STAGING)
        return self._connection

    def _store(self, cursor: Any, sheet: Sheet) -> None:
        if sheet.points:
            for name in {name for name, _, _ in sheet.points} - self._series.keys():
                self._series[name] = _series_id(cursor, name)
            with cursor.copy(_COPY) as copy:
                copy.set_types(_TYPES)
                for (name, step, generation), value in sheet.points.items():
                    copy.write_row((self._series[name], step, generation, *value))
            cursor.execute(_POINTS)
        if sheet.events:
            cursor.executemany(_EVENTS, sheet.events)
        rows = [(sheet.upto[life], count, *life) for life, count in sheet.dropped.items()]
        if rows:
            cursor.executemany(_RECEIVED, rows)


def _upto(cursor: Any, life: Life) -> int:
    cursor.execute(_CLAIM, life)
    upto: int = cursor.execute(_UPTO, life).fetchone()[0]
    return upto


def _series_id(cursor: Any, name: SeriesName) -> int:
    cursor.execute(_NEW_SERIES, name)
    key: int = cursor.execute(_SERIES, name).fetchone()[0]
    return key
