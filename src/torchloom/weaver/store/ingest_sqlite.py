"""Write a sheet into SQLite, straight through sqlite3."""

from pathlib import Path

from torchloom.weaver.store.engine import connect_sqlite
from torchloom.weaver.store.sheet import Life, Numbered, SeriesName, Sheet

_UPTO = "SELECT upto FROM received WHERE job = ? AND rank = ? AND incarnation = ?"
_SERIES = "SELECT id FROM series WHERE job = ? AND name = ? AND rank = ? AND role = ?"
_NEW_SERIES = "INSERT INTO series (job, name, rank, role) VALUES (?, ?, ?, ?)"
_POINTS = (
    "INSERT OR REPLACE INTO metrics (series, step, generation, time, value) VALUES (?,?,?,?,?)"
)
_EVENTS = (
    "INSERT INTO events (job, rank, generation, incarnation, number, kind, step, time, facts)"
    " VALUES (?,?,?,?,?,?,?,?,?)"
)
_RECEIVED = (
    "INSERT INTO received (job, rank, incarnation, upto, dropped) VALUES (?,?,?,?,?)"
    " ON CONFLICT (job, rank, incarnation)"
    " DO UPDATE SET upto = excluded.upto, dropped = dropped + excluded.dropped"
)


class SqliteIngest:
    """One connection that writes `records.db`; of one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = connect_sqlite(path, "records")
        self._series: dict[SeriesName, int] = {}

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
        points = (
            (self._id(name), step, generation, *value)
            for (name, step, generation), value in sheet.points.items()
        )
        self._connection.executemany(_POINTS, points)
        self._connection.executemany(_EVENTS, sheet.events)
        rows = ((*life, sheet.upto[life], dropped) for life, dropped in sheet.dropped.items())
        self._connection.executemany(_RECEIVED, rows)

    def _id(self, name: SeriesName) -> int:
        known = self._series.get(name)
        if known is None:
            row = self._connection.execute(_SERIES, name).fetchone()
            known = row[0] if row else self._connection.execute(_NEW_SERIES, name).lastrowid
            assert known is not None
            self._series[name] = known
        return known
