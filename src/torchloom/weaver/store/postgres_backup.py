"""Both schemas of a Postgres database as files: read in one snapshot, loaded into an empty one.

`postgres/tables.json` lists the tables, their columns and the positions of their sequences. Beside
it each table has a file with its rows, in the binary format of `COPY`. Tables are not described:
the migrations make them, up to the revision that the backup was made from.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.errors import Failure, UserError
from torchloom.weaver.store.backup import PARTS, TABLES, CopyPace, CopyRest, NothingToBackUp
from torchloom.weaver.store.engine import Part, engine_of
from torchloom.weaver.store.place import DatabasePlace, shown
from torchloom.weaver.store.schema import create

if TYPE_CHECKING:
    from psycopg import Connection, sql

_INDEX = "tables.json"
_BLOCK = 1 << 16  # bytes of a file that are sent at a time
_TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
    " AND relkind = 'r' ORDER BY relname"
)
_COLUMNS = (
    "SELECT attname, pg_get_serial_sequence(format('%%I.%%I', %s::text, %s::text), attname)"
    " FROM pg_attribute WHERE attrelid = to_regclass(format('%%I.%%I', %s::text, %s::text))"
    " AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_SIZE = (
    "SELECT coalesce(sum(pg_table_size(oid)), 0)::bigint FROM pg_class"
    " WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'"
)


class TablesUnreadable(Failure):
    """The Postgres server did not let both schemas be read or written."""

    code = "database_unreachable"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"cannot copy the database {shown(url)}: {why.strip()}")


class DatabaseNotEmpty(UserError):
    """A restore would mix two planes."""

    code = "database_not_empty"

    def __init__(self, url: str, part: Part, tables: int) -> None:
        super().__init__(
            f"{shown(url)} has {tables} tables in its schema {part!r}, and a backup is restored"
            " into an empty database alone; make a new one and name it in LOOM_DATABASE"
        )


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table of a backup; `sequences` has the last value of each column that counts by itself."""

    part: Part
    name: str
    columns: tuple[str, ...]
    sequences: Mapping[str, tuple[int, bool]]

    @property
    def path(self) -> Path:
        return Path(TABLES, self.part, self.name)

    def words(self, text: str) -> "sql.Composed":
        """Return a statement about this table; names are quoted, whatever they are."""
        from psycopg import sql

        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        table = sql.Identifier(self.part, self.name)
        return sql.SQL(text).format(table=table, columns=columns)


def size_of_tables(url: str) -> int:
    """Return how many bytes the rows of both schemas take on the server."""
    with _connected(url) as connection:
        return sum(_number(connection, _SIZE, part) for part in PARTS)


def copy_tables(url: str, folder: Path, pace: CopyPace) -> dict[str, str]:
    """Copy the rows of both schemas as they are at one moment; return their revisions."""
    from psycopg import IsolationLevel

    with _connected(url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        tables = [_described(connection, part, name) for part, name in _named(connection)]
        if not {("state", "alembic_version"), ("records", "alembic_version")} <= {
            (table.part, table.name) for table in tables
        }:
            raise NothingToBackUp(shown(url))
        for part in PARTS:
            (folder / TABLES / part).mkdir(parents=True)
        (folder / TABLES / _INDEX).write_text(json.dumps([asdict(table) for table in tables]))
        for table in tables:
            _copy_out(connection, table, folder / table.path, pace)
        return {part: _revision(connection, part) for part in PARTS}


def load_tables(
    url: str, folder: Path, revisions: Mapping[str, str], before_commit: Callable[[], Any]
) -> None:
    """Make both schemas in an empty database and fill them: all of it, or nothing."""
    import sqlalchemy as sa

    engine = engine_of(DatabasePlace(None, url), "state")
    try:
        with engine.connect() as connection, connection.begin():
            pooled: Any = connection.connection.driver_connection
            for part in PARTS:
                _refuse_tables(pooled, url, part)
                connection.execute(sa.text(f"SET LOCAL search_path TO {part}"))
                create(connection, part, revisions[part])
            for table in _listed(pooled, folder):
                _copy_in(pooled, table, folder / table.path)
            before_commit()
    except sa.exc.DBAPIError as error:
        raise TablesUnreadable(url, str(error.orig)) from error
    finally:
        engine.dispose()


@contextlib.contextmanager
def _connected(url: str) -> "Iterator[Connection[Any]]":
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        raise TablesUnreadable(url, str(error)) from error


def _named(connection: "Connection[Any]") -> list[tuple[Part, str]]:
    return [(part, str(row[0])) for part in PARTS for row in connection.execute(_TABLES, (part,))]


def _described(connection: "Connection[Any]", part: Part, name: str) -> CopiedTable:
    from psycopg import sql

    columns, sequences = [], {}
    for column, counter in connection.execute(_COLUMNS, (part, name, part, name)).fetchall():
        columns.append(str(column))
        if counter:  # its value is never older than the snapshot
            place = sql.Identifier(*str(counter).replace('"', "").split("."))
            row = connection.execute(sql.SQL("SELECT last_value, is_called FROM {}").format(place))
            last, is_called = row.fetchone() or (1, False)
            sequences[str(column)] = (int(last), bool(is_called))
    return CopiedTable(part, name, tuple(columns), sequences)


def _copy_out(
    connection: "Connection[Any]", table: CopiedTable, target: Path, pace: CopyPace
) -> None:
    words = table.words("COPY {table} ({columns}) TO STDOUT (FORMAT binary)")
    target.touch(mode=0o600)
    with target.open("wb") as file, contextlib.closing(CopyRest(target, pace)) as rest:
        with connection.cursor() as cursor, cursor.copy(words) as rows:
            for block in rows:
                file.write(block)
                rest.after(len(block))
        file.flush()


def _copy_in(connection: "Connection[Any]", table: CopiedTable, source: Path) -> None:
    with connection.cursor() as cursor:
        cursor.execute(table.words("TRUNCATE {table}"))  # a migration may have made rows
        words = table.words("COPY {table} ({columns}) FROM STDIN (FORMAT binary)")
        with cursor.copy(words) as rows, source.open("rb") as file:
            while block := file.read(_BLOCK):
                rows.write(block)
        for column, (last, is_called) in table.sequences.items():
            cursor.execute(
                "SELECT setval(pg_get_serial_sequence(format('%%I.%%I', %s::text, %s::text), %s),"
                " %s, %s)",
                (table.part, table.name, column, last, is_called),
            )


def _listed(connection: "Connection[Any]", folder: Path) -> list[CopiedTable]:
    """Return the tables of a backup; one that the migrations did not make is refused."""
    found = [
        CopiedTable(**{**row, "columns": tuple(row["columns"])})
        for row in json.loads((folder / TABLES / _INDEX).read_bytes())
    ]
    known = set(_named(connection))
    for table in found:
        if (table.part, table.name) not in known:
            raise UserError(
                f"the backup has a table {table.name!r}, which this torchloom does not know"
            )
    return found


def _refuse_tables(connection: "Connection[Any]", url: str, part: Part) -> None:
    count = len(connection.execute(_TABLES, (part,)).fetchall())
    if count:
        raise DatabaseNotEmpty(url, part, count)


def _revision(connection: "Connection[Any]", part: Part) -> str:
    row = connection.execute(f"SELECT version_num FROM {part}.alembic_version").fetchone()
    return str(row[0]) if row else ""


def _number(connection: "Connection[Any]", words: str, part: Part) -> int:
    row = connection.execute(words.encode(), (part,)).fetchone()
    return int(row[0]) if row else 0
