"""Connections: SQLite in WAL mode with the durability each file needs, or a schema of Postgres."""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from torchloom.weaver.store.place import Place, prepare
from torchloom.weaver.store.room import PAGES

Part: TypeAlias = Literal["state", "records"]

_SYNCHRONOUS = {"state": "FULL", "records": "NORMAL"}
_PATIENCE = 30.0  # seconds to wait for a lock; only a second weaver could hold one for long


def engine_of(place: Place, part: Part) -> sa.Engine:
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
