"""Make a SQLite file's log as long as it will be, before anybody waits for a commit.

A commit that lengthens the log has the file system write its own journal, too: some milliseconds
on a busy machine. One that overwrites what is there takes a fraction of one.
"""

import contextlib
import sqlite3

import sqlalchemy as sa

PAGES = 2000  # of the log, before what it holds goes into the database itself
_SMALL = 10  # pages kept in memory while room is made: the others go to the log at once


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
