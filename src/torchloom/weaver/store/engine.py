"""Connections: SQLite in WAL mode with the durability each file needs, or a schema of Postgres."""

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from torchloom.weaver.store.place import DatabasePlace, prepare

PAGES = 2000  # of the log, before what it holds goes into the database itself
_SMALL = 10  # pages kept in memory while room is made: the others go to the log at once
_SYNCHRONOUS = {"state": "FULL", "records": "NORMAL"}
_PATIENCE = 30.0  # seconds to wait for a lock; only a second weaver could hold one for long


def make_room(engine: sa.Engine) -> None:
    """Lengthen the log by a change that is taken back; where that fails, commits are slower."""
    pooled = engine.raw_connection()
    try:
        connection = pooled.driver_connection
        if isinstance(connection, sqlite3.Connection):
            _lengthen(connection)
    finally:
        pooled.close()


def _lengthen(connection: sqlite3.Connection) -> None:
    (kept,) = connection.execute("PRAGMA cache_size").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA cache_size={_SMALL}")
    with contextlib.suppress(sqlite3.OperationalError):  # no room on the disk, or a second weaver
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE room (content)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (PAGES * size,))
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute(f"PRAGMA cache_size={kept}")


class TextColumn(sa.TypeDecorator[str]):
    """Text from anywhere: what a database would refuse (NUL, half a surrogate) is replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean(value)


class JsonText(sa.TypeDecorator[Any]):
    """JSON kept as text: NaN and escapes survive, which Postgres' own type refuses."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return pack(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # an INTEGER key grows by itself


def clean(text: str) -> str:
    """Return text that every database takes."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def pack(value: Any) -> str:
    """Return a value as JSON of plain letters."""
    return json.dumps(value, separators=(",", ":"))


Part: TypeAlias = Literal["state", "records"]


def engine_of(place: DatabasePlace, part: Part) -> sa.Engine:
    """Return an engine for one of the two databases; the folder and the file are made."""
    if place.folder is None:
        return _postgres(place.url, part)
    path = file_of(place.folder, part)
    # What SQLAlchemy takes for this URL by itself closes connections that other threads use.
    engine = sa.create_engine(
        "sqlite://", creator=lambda: connect_sqlite(path, part), poolclass=sa.QueuePool
    )
    sa.event.listen(engine, "begin", _begin)
    return engine


def file_of(folder: Path, part: Part) -> Path:
    """Return the file of one database, readable by this user only.

    One that exists is not opened: to close it would release the locks that this process has on it
    through SQLite, and the next process that closes its connection would remove the log.
    """
    prepare(folder)
    path = folder / f"{part}.db"
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return path


def connect_sqlite(path: Path, part: Part) -> sqlite3.Connection:
    """Return a connection whose transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS[part]}")
    connection.execute(f"PRAGMA wal_autocheckpoint={PAGES}")
    return connection


def connect_postgres(url: str, part: Part) -> Any:
    """Return a psycopg connection that sees one schema."""
    import psycopg

    return psycopg.connect(url, options=_options(part), connect_timeout=10)


def _postgres(url: str, part: Part) -> sa.Engine:
    address = f"postgresql+psycopg://{url.partition('://')[2]}"
    args = {"options": _options(part), "connect_timeout": 10}
    return sa.create_engine(address, connect_args=args, pool_pre_ping=True)


def _options(part: Part) -> str:
    return f"-csearch_path={part}"


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
