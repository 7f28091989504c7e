"""Write a sheet into SQLite, straight through sqlite3."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torchloom.weaver.store.engine import connect_sqlite
from torchloom.weaver.store.log import PROGRESS, Limits, Log
from torchloom.weaver.store.sheet import Life, Numbered, Sheet, Source

_UPTO = "SELECT upto FROM received WHERE job = ? AND rank = ? AND incarnation = ?"
_SERIES = "SELECT id FROM series WHERE job = ? AND name = ? AND rank = ? AND role = ?"
_NEW_SERIES = "INSERT INTO series (job, name, rank, role) VALUES (?, ?, ?, ?)"
_EVENTS = (
    "INSERT INTO events (job, rank, generation, incarnation, number, kind, step, time, facts)"
    " VALUES (?,?,?,?,?,?,?,?,?)"
)
_RECEIVED = (
    "INSERT INTO received (job, rank, incarnation, upto, dropped) VALUES (?,?,?,?,?)"
    " ON CONFLICT (job, rank, incarnation)"
    " DO UPDATE SET upto = excluded.upto, dropped = dropped + excluded.dropped"
)


class SqliteSql:
    """What the writer says, to one connection."""

    append = "CAST(data || ? AS BLOB)"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]:
        return self._connection.execute(words, values).fetchall()

    def many(self, words: str, values: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(words, values)


class SqliteIngest:
    """One connection that writes `records.db`; of one thread at a time."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._connection = connect_sqlite(path, "records")
        self._sql = SqliteSql(self._connection)
        self._series: dict[Source, tuple[int, ...]] = {}
        self._limits = limits

    def write(self, batches: list[Numbered]) -> list[int]:
        """Store batches in one transaction; return up to where each one's life is stored now."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            sheet = Sheet({batch.life: self._upto(batch.life) for batch in batches})
            answers = [sheet.add(batch) for batch in batches]
            self._store(sheet)
            self._connection.execute("COMMIT")
        except BaseException:
            self._series.clear()  # some of it may have been taken back
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return answers

    def close(self) -> None:
        """Let the database go."""
        self._connection.close()

    def _upto(self, life: Life) -> int:
        row = self._connection.execute(_UPTO, life).fetchone()
        return row[0] if row else 0

    def _store(self, sheet: Sheet) -> None:
        (progress,) = self._sql.rows(PROGRESS)
        Log(self._sql, progress, self._limits).add(sheet.rows, self._ids)
        self._connection.executemany(_EVENTS, sheet.events)
        rows = ((*life, sheet.upto[life], dropped) for life, dropped in sheet.dropped.items())
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
