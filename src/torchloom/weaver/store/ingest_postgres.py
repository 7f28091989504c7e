"""Write a sheet into Postgres, straight through psycopg."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from torchloom.weaver.store import chunks
from torchloom.weaver.store.engine import connect_postgres
from torchloom.weaver.store.log import PROGRESS, Limits, Log
from torchloom.weaver.store.sheet import Life, Numbered, Sheet, Source

_UPTO = (
    "SELECT job, rank, incarnation, upto FROM received JOIN"
    " unnest(%s::text[], %s::bigint[], %s::text[]) AS asked (job, rank, incarnation)"
    " USING (job, rank, incarnation)"
)
_NEW_SERIES = (
    "INSERT INTO series (job, name, rank, role) SELECT %s, unnest(%s::text[]), %s, %s"
    " ON CONFLICT DO NOTHING"
)
_SERIES = (
    "SELECT name, id FROM series WHERE job = %s AND name = ANY(%s) AND rank = %s AND role = %s"
)
_EVENTS = (
    "INSERT INTO events (job, rank, generation, incarnation, number, kind, step, time, facts)"
    " VALUES (?,?,?,?,?,?,?,?,?)"
)
# What is said of many rows is said once, as JSON: the server would plan each statement anew, which
# takes longer than what they do. Not where rows have bytes.
_RECEIVED = (
    "INSERT INTO received (job, rank, incarnation, upto, dropped)"
    " SELECT * FROM json_to_recordset(%s)"
    " AS new (job text, rank bigint, incarnation text, upto bigint, dropped bigint)"
    " ON CONFLICT (job, rank, incarnation)"
    " DO UPDATE SET upto = excluded.upto, dropped = received.dropped + excluded.dropped"
)
_LATER = (
    "UPDATE series SET number = new.number, loose = new.loose, room = new.room"
    " FROM json_to_recordset(%s) AS new (id bigint, number bigint, loose bigint, room bigint)"
    " WHERE series.id = new.id"
)


class PostgresSql:
    """What the writer says, to one cursor."""

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
            self.at_once(_LATER, [dict(zip(names, row, strict=True)) for row in rows])
        elif len(rows) == 1:
            self._cursor.execute(_marked(words), rows[0])
        elif rows:
            self._cursor.executemany(_marked(words), rows)

    def at_once(self, words: str, rows: Sequence[dict[str, Any]]) -> None:
        """Say something of many rows in one statement."""
        if rows:
            self._cursor.execute(words, [msgspec.json.encode(rows).decode()])


class PostgresIngest:
    """One connection that writes the schema `records`; made anew when the server went away."""

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        self._connection: Any = None
        self._series: dict[Source, tuple[int, ...]] = {}

    def write(self, batches: list[Numbered]) -> list[int]:
        """Store batches in one transaction; return up to where each one's life is stored now."""
        connection = self._connected()
        try:
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                sql = PostgresSql(cursor)
                # Two writers wait for each other here: numbers are given in the order of commits.
                (progress,) = sql.rows(f"{PROGRESS} FOR UPDATE")
                sheet = Sheet(_upto(cursor, {batch.life for batch in batches}))
                answers = [sheet.add(batch) for batch in batches]
                Log(sql, progress, self._limits).add(sheet.rows, lambda s: self._ids(cursor, s))
                _store(sql, sheet)
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
        return self._connection

    def _ids(self, cursor: Any, source: Source) -> tuple[int, ...]:
        known = self._series.get(source)
        if known is None:
            job, rank, role, names = source
            cursor.execute(_NEW_SERIES, (job, list(names), rank, role))
            found = dict(cursor.execute(_SERIES, (job, list(names), rank, role)).fetchall())
            known = self._series[source] = tuple(found[name] for name in names)
        return known


def _upto(cursor: Any, lives: set[Life]) -> dict[Life, int]:
    found = dict.fromkeys(lives, 0)
    asked = [list(column) for column in zip(*lives, strict=True)]
    for job, rank, incarnation, upto in cursor.execute(_UPTO, asked).fetchall():
        found[job, rank, incarnation] = upto
    return found


def _store(sql: PostgresSql, sheet: Sheet) -> None:
    sql.many(_EVENTS, sheet.events)
    names = ("job", "rank", "incarnation")
    rows = [
        {**dict(zip(names, life, strict=True)), "upto": sheet.upto[life], "dropped": count}
        for life, count in sheet.dropped.items()
    ]
    sql.at_once(_RECEIVED, rows)


def _marked(words: str) -> str:
    return words.replace("?", "%s")
