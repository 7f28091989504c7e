"""The log of arrivals: each transaction appends to it, and it is merged into chunks at times.

One short write a transaction makes points durable, whatever the number of their series. Readers
look at what is not merged yet as well; those who follow a job read nothing else.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchloom.weaver.store.engine import connect_postgres, connect_sqlite
from torchloom.weaver.store.series import chunks
from torchloom.weaver.store.series.chunks import Chunks
from torchloom.weaver.store.series.points import Part, parts, piece, record
from torchloom.weaver.store.series.tables import Sql
from torchloom.weaver.store.series.writer import (
    IncarnationKey,
    NumberedBatch,
    RecordSheet,
    Rows,
    Source,
)

_LIGHT = 2  # points weigh so much less than the series that each record has
_KEPT_ROWS = 10_000  # of the log, for readers that follow a job
PROGRESS = "SELECT last, merged, waiting FROM progress"
_LATER = "UPDATE progress SET last = ?, merged = ?, waiting = ?"
_NEW = "INSERT INTO arrivals (number, job, points, size, data) VALUES (?,?,?,?,?)"
_WAITING = "SELECT data FROM arrivals WHERE number > ? ORDER BY number"
_SIZES = f"SELECT number, size FROM arrivals ORDER BY number DESC LIMIT {_KEPT_ROWS + 1}"
_OLD = "DELETE FROM arrivals WHERE number <= ?"
_DROPPED = "UPDATE progress SET dropped = ? WHERE dropped < ?"
_UPTO_OF_ALL = (
    "SELECT job, rank, incarnation, upto FROM received JOIN"
    " unnest(%s::text[], %s::bigint[], %s::text[]) AS asked (job, rank, incarnation)"
    " USING (job, rank, incarnation)"
)
_NEW_SERIES_AT_ONCE = (
    "INSERT INTO series (job, name, rank, role) SELECT %s, unnest(%s::text[]), %s, %s"
    " ON CONFLICT DO NOTHING"
)
_SERIES_OF_ALL = (
    "SELECT name, id FROM series WHERE job = %s AND name = ANY(%s) AND rank = %s AND role = %s"
)
_EVENTS = (
    "INSERT INTO events (job, rank, generation, incarnation, number, kind, step, time, facts)"
    " VALUES (?,?,?,?,?,?,?,?,?)"
)
# Values of many rows are sent once, as JSON: the server would plan each statement anew, which
# takes longer than what they do. Not where rows have bytes.
_RECEIVED_AT_ONCE = (
    "INSERT INTO received (job, rank, incarnation, upto, dropped)"
    " SELECT * FROM json_to_recordset(%s)"
    " AS new (job text, rank bigint, incarnation text, upto bigint, dropped bigint)"
    " ON CONFLICT (job, rank, incarnation)"
    " DO UPDATE SET upto = excluded.upto, dropped = received.dropped + excluded.dropped"
)
_LATER_AT_ONCE = (
    "UPDATE series SET number = new.number, loose = new.loose, room = new.room"
    " FROM json_to_recordset(%s) AS new (id bigint, number bigint, loose bigint, room bigint)"
    " WHERE series.id = new.id"
)
_UPTO = "SELECT upto FROM received WHERE job = ? AND rank = ? AND incarnation = ?"
_SERIES = "SELECT id FROM series WHERE job = ? AND name = ? AND rank = ? AND role = ?"
_NEW_SERIES = "INSERT INTO series (job, name, rank, role) VALUES (?, ?, ?, ?)"
_RECEIVED = (
    "INSERT INTO received (job, rank, incarnation, upto, dropped) VALUES (?,?,?,?,?)"
    " ON CONFLICT (job, rank, incarnation)"
    " DO UPDATE SET upto = excluded.upto, dropped = dropped + excluded.dropped"
)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """At which weight the log is merged, and how many bytes of it are kept after that."""

    enough: int = 1 << 16
    kept: int = 64 << 20


class ArrivalLog:
    """The log, within one transaction."""

    def __init__(self, sql: Sql, progress: Sequence[int], limits: LogLimits) -> None:
        self._sql = sql
        self._last, self._merged, self._waiting = progress
        self._limits = limits

    def add(self, rows: Sequence[Rows], ids: Callable[[Source], Sequence[int]]) -> None:
        """Store rows by job, in the order of arrival."""
        if not rows:
            return
        jobs: dict[str, list[bytes]] = defaultdict(list)
        points: dict[str, int] = defaultdict(int)
        for each in rows:
            job, keys = each.source[0], ids(each.source)
            jobs[job].append(record(each.generation, keys, each.count, each.content))
            points[job] += len(keys) * each.count
            self._waiting += len(keys)
        new = []
        for job, records in jobs.items():
            self._last += 1
            data = b"".join(records)
            new.append((self._last, job, points[job], len(data), data))
        self._sql.many(_NEW, new)
        self._waiting += sum(points.values()) // _LIGHT
        if self._waiting >= self._limits.enough:
            self.merge()
        self._sql.many(_LATER, [(self._last, self._merged, self._waiting)])

    def merge(self) -> None:
        """Move the log into chunks, and drop what no reader follows any more."""
        come: dict[int, list[Part]] = defaultdict(list)
        for (data,) in self._sql.rows(_WAITING, self._merged):
            for series, part in parts(data):
                come[series].append(part)
        chunks = Chunks(self._sql, self._merged + 1, self._last)
        chunks.add({key: piece(found) for key, found in come.items()})
        self._merged, self._waiting = self._last, 0
        self._forget()

    def _forget(self) -> None:
        size = 0
        for kept, (number, added) in enumerate(self._sql.rows(_SIZES)):
            size += added
            if size > self._limits.kept or kept == _KEPT_ROWS:
                self._sql.many(_OLD, [(number,)])
                self._sql.many(_DROPPED, [(number, number)])
                return


class PostgresSql:
    """The writer's SQL on one cursor."""

    append = "data || ?"

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = self._cursor.execute(_marked(words), values).fetchall()
        return found

    def many(self, words: str, values: Iterable[Sequence[Any]]) -> None:
        rows = list(values)
        if words == chunks.LATER:
            names = ("number", "loose", "room", "id")
            self.at_once(_LATER_AT_ONCE, [dict(zip(names, row, strict=True)) for row in rows])
        elif len(rows) == 1:
            self._cursor.execute(_marked(words), rows[0])
        elif rows:
            self._cursor.executemany(_marked(words), rows)

    def at_once(self, words: str, rows: Sequence[dict[str, Any]]) -> None:
        """Execute one statement for many rows."""
        if rows:
            self._cursor.execute(words, [msgspec.json.encode(rows).decode()])


class PostgresIngest:
    """One connection that writes the schema `records`; opened again when the server was away."""

    def __init__(self, url: str, limits: LogLimits) -> None:
        self._url = url
        self._limits = limits
        self._connection: Any = None
        self._series: dict[Source, tuple[int, ...]] = {}

    def write(self, batches: list[NumberedBatch]) -> list[int]:
        """Store batches in one transaction; return up to which number each process is stored."""
        connection = self._connected()
        try:
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                sql = PostgresSql(cursor)
                # Two writers wait for each other here: numbers are given in the order of commits.
                (progress,) = sql.rows(f"{PROGRESS} FOR UPDATE")
                sheet = RecordSheet(_upto(cursor, {batch.key for batch in batches}))
                answers = [sheet.add(batch) for batch in batches]
                ArrivalLog(sql, progress, self._limits).add(
                    sheet.rows, lambda s: self._ids(cursor, s)
                )
                _store(sql, sheet)
        except BaseException:
            self.close()
            raise
        return answers

    def close(self) -> None:
        """Close the database."""
        self._series.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = connect_postgres(self._url, "records")
            self._connection.autocommit = True
        return self._connection

    def _ids(self, cursor: Any, source: Source) -> tuple[int, ...]:
        known = self._series.get(source)
        if known is None:
            job, rank, role, names = source
            cursor.execute(_NEW_SERIES_AT_ONCE, (job, list(names), rank, role))
            found = dict(cursor.execute(_SERIES_OF_ALL, (job, list(names), rank, role)).fetchall())
            known = self._series[source] = tuple(found[name] for name in names)
        return known


def _upto(cursor: Any, keys: set[IncarnationKey]) -> dict[IncarnationKey, int]:
    found = dict.fromkeys(keys, 0)
    asked = [list(column) for column in zip(*keys, strict=True)]
    for job, rank, incarnation, upto in cursor.execute(_UPTO_OF_ALL, asked).fetchall():
        found[job, rank, incarnation] = upto
    return found


def _store(sql: PostgresSql, sheet: RecordSheet) -> None:
    sql.many(_EVENTS, sheet.events)
    names = ("job", "rank", "incarnation")
    rows = [
        {**dict(zip(names, key, strict=True)), "upto": sheet.upto[key], "dropped": count}
        for key, count in sheet.dropped.items()
    ]
    sql.at_once(_RECEIVED_AT_ONCE, rows)


def _marked(words: str) -> str:
    return words.replace("?", "%s")


class SqliteSql:
    """The writer's SQL on one connection."""

    append = "CAST(data || ? AS BLOB)"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]:
        return self._connection.execute(words, values).fetchall()

    def many(self, words: str, values: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(words, values)


class SqliteIngest:
    """One connection that writes `records.db`; of one thread at a time."""

    def __init__(self, path: Path, limits: LogLimits) -> None:
        self._connection = connect_sqlite(path, "records")
        self._sql = SqliteSql(self._connection)
        self._series: dict[Source, tuple[int, ...]] = {}
        self._limits = limits

    def write(self, batches: list[NumberedBatch]) -> list[int]:
        """Store batches in one transaction; return up to which number each process is stored."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            sheet = RecordSheet({batch.key: self._upto(batch.key) for batch in batches})
            answers = [sheet.add(batch) for batch in batches]
            self._store(sheet)
            self._connection.execute("COMMIT")
        except BaseException:
            self._series.clear()  # some of it may have been rolled back
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return answers

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _upto(self, key: IncarnationKey) -> int:
        row = self._connection.execute(_UPTO, key).fetchone()
        return row[0] if row else 0

    def _store(self, sheet: RecordSheet) -> None:
        (progress,) = self._sql.rows(PROGRESS)
        ArrivalLog(self._sql, progress, self._limits).add(sheet.rows, self._ids)
        self._connection.executemany(_EVENTS, sheet.events)
        rows = ((*key, sheet.upto[key], dropped) for key, dropped in sheet.dropped.items())
        self._connection.executemany(_RECEIVED, rows)

    def _ids(self, source: Source) -> tuple[int, ...]:
        known = self._series.get(source)
        if known is None:
            job, rank, role, names = source
            known = tuple(self._id((job, name, rank, role)) for name in names)
            self._series[source] = known
        return known

    def _id(self, name: tuple[str, str, int, str]) -> int:
        row = self._connection.execute(_SERIES, name).fetchone()
        found = row[0] if row else self._connection.execute(_NEW_SERIES, name).lastrowid
        assert found is not None
        return int(found)
