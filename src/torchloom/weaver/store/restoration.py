"""Bring databases back: from a backup, or from what can still be read of a damaged file.

What was there is moved aside and never deleted. The caller has made sure that no plane runs.
"""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from torchloom.errors import Failure, UserError
from torchloom.weaver.store.backup import (
    KEYS,
    OF_TABLES,
    PARTS,
    TABLES,
    BackupDamaged,
    BackupManifest,
    problem_of,
    read_manifest,
    require_room,
    schema_of,
    size_of,
    verified,
)
from torchloom.weaver.store.engine import Part, engine_of
from torchloom.weaver.store.place import INCOMPLETE, DatabasePlace, prepare
from torchloom.weaver.store.schema import HEADS, SchemaNewer, known_schemas, upgrade

_SHELL = ("sqlite3", "-batch", "-bail")
_PATIENCE = 3600.0  # seconds for the shell to read a damaged file
_ROWS = 500  # read together where the file is whole
# What the writer of records relies on, whatever was lost: numbers grow, and chunks have a series.
_MENDED = (
    "DELETE FROM chunks WHERE series NOT IN (SELECT id FROM series)",
    "DELETE FROM spans WHERE series NOT IN (SELECT id FROM series)",
    "UPDATE progress SET merged = max(merged, (SELECT coalesce(max(upto), 0) FROM chunks))",
    "UPDATE progress SET last = max(last, merged, (SELECT coalesce(max(number), 0) FROM arrivals))",
)
_FARTHEST = 1 << 40  # rows that are skipped at most where a file is damaged


class SalvageOnPostgres(UserError):
    """Only files of SQLite can be read around a damage."""

    code = "backup_on_postgres"

    def __init__(self) -> None:
        super().__init__(
            "LOOM_DATABASE names a Postgres server: --salvage reads damaged SQLite files;"
            " restore a backup into an empty database, or use the tools of Postgres"
        )


class OtherDatabase(UserError):
    """The backup is of one kind of database, and the plane has the other."""

    code = "other_database"

    def __init__(self, path: Path, manifest: BackupManifest) -> None:
        kinds = ("a Postgres database", "SQLite files")
        had, has = kinds if manifest.version == OF_TABLES else reversed(kinds)
        remedy = "set LOOM_DATABASE" if manifest.version == OF_TABLES else "unset LOOM_DATABASE"
        super().__init__(f"{path} is a backup of {had}, but this plane uses {has}; {remedy}")


@dataclass(frozen=True, slots=True)
class RestoredPlane:
    """What a backup brought back, and where that is which it replaced."""

    manifest: BackupManifest
    replaced: Path | None


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was read of a damaged database, by table, and where the damaged file is now."""

    name: str
    why: str
    rows: dict[str, int]
    replaced: Path
    by: str  # what read it: the shell's `.recover`, or row by row


def restore(path: Path, place: DatabasePlace, home: Path) -> RestoredPlane:
    """Put a backup in the place of what is there; until it is checked nothing is changed."""
    manifest = read_manifest(path)
    if (manifest.version == OF_TABLES) != (place.folder is None):
        raise OtherDatabase(path, manifest)
    _require_known(manifest)
    folder = place.folder or home / "plane"
    prepare(folder)
    require_room(folder, sum(entry.size for entry in manifest.files))
    with _workshop(folder) as work:
        for entry, content in verified(path, manifest):
            with _made(work / _name(path, entry.name)) as file:
                for block in content:
                    file.write(block)
        if place.folder is None:
            return RestoredPlane(manifest, _load(manifest, work, place.url, folder))
        for part in PARTS:
            why = problem_of(work / f"{part}.db")
            if why:
                raise BackupDamaged(path, f"{part}.db: {why}")
        return RestoredPlane(manifest, _exchange(work, folder, home / "plane"))


def salvage(place: DatabasePlace, home: Path) -> list[Salvaged]:
    """Make each damaged database anew from what can be read of it."""
    if place.folder is None:
        raise SalvageOnPostgres
    folder = place.folder
    prepare(folder)
    found = []
    for part in PARTS:
        path = folder / f"{part}.db"
        with _workshop(folder) as work:
            why = _damage(path, work) if path.exists() else ""
            if why:
                found.append(_salvage(part, path, work, why))
    return found


def _load(manifest: BackupManifest, work: Path, url: str, plane: Path) -> Path | None:
    """Fill an empty database; the keys are exchanged just before what it holds can be seen."""
    from torchloom.weaver.store.postgres_backup import load_tables

    aside = _aside(plane)
    try:
        exchange = partial(_exchange_keys, work, aside, plane)
        load_tables(url, work, manifest.schemas, exchange)
    finally:
        kept = _unless_empty(aside)
    return kept


def _require_known(manifest: BackupManifest) -> None:
    for part in PARTS:
        schema = manifest.schemas.get(part, "")
        if schema and schema not in known_schemas(part):
            raise SchemaNewer(part, schema)


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """Yield a folder beside the databases, from which files are moved in one step each."""
    for left in folder.glob(".restore-*"):  # by one that was killed: the caller is alone
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=".restore-", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _name(path: Path, name: str) -> PurePosixPath:
    """Return where a file of a backup belongs; only what a backup of ours holds has a place."""
    inner = PurePosixPath(name)
    is_ours = name in [f"{part}.db" for part in PARTS] or inner.parts[0] in (*KEYS, TABLES)
    if not is_ours or ".." in inner.parts or inner.is_absolute():
        raise BackupDamaged(path, f"it contains {name!r}, which does not belong to it")
    return inner


@contextlib.contextmanager
def _made(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        yield file
        file.flush()
        os.fsync(fd)


def _exchange(work: Path, folder: Path, plane: Path) -> Path | None:
    """Move what is there aside and the new files in; an interruption leaves a mark."""
    mark = folder / INCOMPLETE
    mark.touch(mode=0o600)
    aside = _aside(folder)
    for path in [each for part in PARTS for each in _files(folder / f"{part}.db")]:
        _move(path, aside / path.name)
    _exchange_keys(work, aside, plane)
    for part in PARTS:
        (work / f"{part}.db").rename(folder / f"{part}.db")
    mark.unlink()
    return _unless_empty(aside)


def _exchange_keys(work: Path, aside: Path, plane: Path) -> None:
    for name in KEYS:
        if (work / name).exists():
            _move(plane / name, aside / name)
            plane.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(work / name, plane / name)


def _unless_empty(aside: Path) -> Path | None:
    """Return a folder that holds something; another one is removed."""
    if any(aside.iterdir()):
        return aside
    aside.rmdir()
    return None


def _aside(folder: Path) -> Path:
    """Return a new folder for what is replaced."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = folder / f"replaced-{stamp}{f'-{number}' if number else ''}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise Failure(f"{folder} has too many folders named {path.name}; move some away")


def _files(database: Path) -> list[Path]:
    """Return a database and the logs beside it, without which it is not whole."""
    return [database, *(database.with_name(f"{database.name}{end}") for end in ("-wal", "-shm"))]


def _move(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.move(source, target)


def _damage(path: Path, work: Path) -> str:
    """Return what is wrong with a database, its log included; it is looked at in a copy."""
    require_room(path.parent, 3 * size_of(path))
    for each in _files(path)[:2]:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(each, work / each.name)
    return check(work / path.name)


def check(path: Path) -> str:
    """Return what SQLite finds wrong with a database that may be in use; nothing if all is well."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if found == "ok" else str(found).strip().splitlines()[-1]


def _salvage(part: Part, path: Path, work: Path, why: str) -> Salvaged:
    damaged = work / path.name
    readable, by = _recovered(damaged, work), "sqlite3 .recover"
    if readable is None:
        readable, by = damaged, "row by row"
    fresh = work / "new"
    engine = engine_of(DatabasePlace(fresh), part)
    upgrade(engine, part, _schema(readable, part))
    engine.dispose()
    rows = _carry_over(readable, fresh / path.name)
    aside = _aside(path.parent)
    for each in _files(path):
        _move(each, aside / each.name)
    (fresh / path.name).rename(path)
    return Salvaged(path.name, why, rows, aside, by)


def _schema(path: Path, part: Part) -> str:
    with contextlib.suppress(sqlite3.DatabaseError):
        found = schema_of(path)
        if found in known_schemas(part):
            return found
    return HEADS[part]


def _recovered(damaged: Path, work: Path) -> Path | None:
    """Return what the shell of SQLite reads of a file; nothing where there is none that can."""
    if shutil.which(_SHELL[0]) is None:
        return None
    target = work / "recovered.db"
    words = [(*_SHELL, str(damaged), ".recover"), (_SHELL[0], "-batch", str(target))]
    null = subprocess.DEVNULL
    with subprocess.Popen(words[0], stdout=subprocess.PIPE, stderr=null) as reading:
        try:
            subprocess.run(
                words[1], stdin=reading.stdout, stdout=null, stderr=null, timeout=_PATIENCE
            )
            reading.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            reading.kill()
    is_whole = reading.returncode == 0 and target.exists() and target.stat().st_size > 0
    return target if is_whole and not check(target) else None


def _carry_over(source: Path, target: Path) -> dict[str, int]:
    """Copy the rows of all tables that a fresh database has; return how many of each."""
    counted = {}
    with (
        contextlib.closing(sqlite3.connect(target, isolation_level=None)) as fresh,
        contextlib.closing(sqlite3.connect(source)) as old,
    ):
        tables = fresh.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = [row[1] for row in fresh.execute(f'PRAGMA table_info("{table}")')]
            if table == "alembic_version":
                continue
            fresh.execute("BEGIN")
            counted[table] = _fill(fresh, table, columns, old)
            fresh.execute("COMMIT")
        if "progress" in counted:
            for words in _MENDED:
                fresh.execute(words)
    return counted


def _fill(
    fresh: sqlite3.Connection, table: str, columns: list[str], old: sqlite3.Connection
) -> int:
    marks = ",".join("?" * len(columns))
    words = f'INSERT OR REPLACE INTO "{table}" ({_listed(columns)}) VALUES ({marks})'
    count = 0
    for rows in _readable(old, table, columns):
        count += fresh.executemany(words, rows).rowcount
    return count


def _readable(
    old: sqlite3.Connection, table: str, columns: list[str]
) -> Iterator[list[tuple[object, ...]]]:
    """Yield the rows of a table that can be read; where one cannot, skip more and more of them."""
    words = (
        f'SELECT rowid, {_listed(columns)} FROM "{table}" WHERE rowid > ? ORDER BY rowid LIMIT ?'
    )
    last, many, skipped = -_FARTHEST, _ROWS, 1
    while skipped < _FARTHEST:
        try:
            rows = old.execute(words, (last, many)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such" in str(error):  # an older or a damaged list of tables
                return
            rows = None
        except sqlite3.DatabaseError:
            rows = None
        if rows is None and many > 1:
            many = 1  # what is before the damage is still to be had
        elif rows is None:
            last, skipped = max(last, 0) + skipped, skipped * 2
        elif not rows:
            return
        else:
            yield [row[1:] for row in rows]
            last, skipped, many = rows[-1][0], 1, min(2 * many, _ROWS)


def _listed(columns: list[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
