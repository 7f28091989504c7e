"""The plane's databases, read with SQL of our own: SQLite files without writing, or Postgres."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Ask = Callable[[str, str, tuple[object, ...]], list[Row]]

# By table: in which of the two it is, which rows are the job's, and in what order.
_TABLES = {
    "jobs": ("state", "id = ?", "id"),
    "events": ("state", "job = ?", "seq"),
    "commands": ("state", "job = ?", "number"),
    "checkpoints": ("state", "job = ?", "step, generation, attempt"),
    "ranks": ("state", "job = ?", "rank"),
    "told": ("records", "job = ?", "id"),
}
_JSON = ("facts", "payload", "shards", "metrics")


@dataclass(frozen=True, slots=True)
class Base:
    """All that the databases have of one job."""

    jobs: Sequence[Row] = ()
    events: Sequence[Row] = ()
    commands: Sequence[Row] = ()
    checkpoints: Sequence[Row] = ()
    ranks: Sequence[Row] = ()
    told: Sequence[Row] = ()  # what ranks said of themselves
    why: str = ""  # nothing could be read, because of this


def read(job: str, home: Path, url: str = "") -> Base:
    """Return what is known of a job; where nothing can be read, why."""
    try:
        with contextlib.ExitStack() as open_:
            ask = _postgres(open_, url) if url else _sqlite(open_, home / "plane")
            found: dict[str, Any] = {name: _rows(ask, name, job) for name in _TABLES}
            return Base(**found)
    except (sqlite3.Error, OSError, ImportError) as error:
        return Base(why=f"the database cannot be read: {error}")


def _rows(ask: Ask, name: str, job: str) -> list[Row]:
    base, which, order = _TABLES[name]
    table = "events" if name == "told" else name
    return [_plain(row) for row in ask(base, f"{table} WHERE {which} ORDER BY {order}", (job,))]


def _plain(row: Row) -> Row:
    """Return a row whose columns of JSON are values, as Postgres gives them."""
    texts = {name: row[name] for name in _JSON if isinstance(row.get(name), str | bytes)}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def _sqlite(open_: contextlib.ExitStack, folder: Path) -> Ask:
    bases = {name: open_.enter_context(_read_only(folder, name)) for name in ("state", "records")}

    def ask(base: str, words: str, values: tuple[object, ...]) -> list[Row]:
        return [dict(row) for row in bases[base].execute(f"SELECT * FROM {words}", values)]

    return ask


@contextlib.contextmanager
def _read_only(folder: Path, name: str) -> Iterator[sqlite3.Connection]:
    path = folder / f"{name}.db"
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as base:
        base.row_factory = sqlite3.Row
        base.execute("PRAGMA busy_timeout = 10000")
        yield base


def _postgres(open_: contextlib.ExitStack, url: str) -> Ask:
    import psycopg
    from psycopg.rows import dict_row

    try:
        base = open_.enter_context(psycopg.connect(url, connect_timeout=10, row_factory=dict_row))
        base.read_only = True
    except psycopg.Error as error:
        raise OSError(str(error)) from error

    def ask(name: str, words: str, values: tuple[object, ...]) -> list[Row]:
        told = words.replace("?", "%s")
        try:
            return list(base.execute(f"SELECT * FROM {name}.{told}".encode(), values))
        except psycopg.Error as error:
            raise OSError(str(error)) from error

    return ask
