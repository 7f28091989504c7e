"""One file with both databases and the plane's keys, made while the plane runs.

It is a tar file: `manifest.json` (versions, schemas, hashes), `state.db`, `records.db`, then the
keys. Each database is copied from one moment of it, in small steps with a pause after each, so
that commits of the plane do not wait for the copy. From a Postgres server it has the rows of both
schemas instead, see `postgres_backup`.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from torchloom.errors import Failure, UserError
from torchloom.weaver.store.engine import Part
from torchloom.weaver.store.place import DatabasePlace

FORMAT = "torchloom-backup"
OF_FILES, OF_TABLES = 1, 2  # versions of the format: SQLite files, rows of Postgres
TABLES = "postgres"  # the folder of a backup that has those rows
MANIFEST = "manifest.json"
PARTS: tuple[Part, ...] = ("state", "records")
KEYS = ("keys", "admin.token")  # in the plane's folder of the home: what cannot be made again
REMEDY = (
    "`loom down`, then `loom restore FILE` brings back a backup and `loom restore --salvage`"
    " what can still be read"
)
_SPARE = 256 << 20  # bytes that stay free on the disk
_SMALL = 1 << 20  # bytes of a manifest
_BLOCK = 1 << 18  # bytes that are read or written at a time
_SYNCED = 1 << 18  # bytes after which what is written goes to the disk: a commit of the plane may
# have to wait until all of it has


class NothingToBackUp(UserError):
    """There are no databases here."""

    code = "nothing_to_back_up"

    def __init__(self, place: Path | str) -> None:
        super().__init__(f"no plane has kept anything in {place}; check LOOM_HOME, LOOM_DATABASE")


class NoRoom(Failure):
    """The disk is too full for a copy."""

    code = "no_room"

    def __init__(self, folder: Path, needed: int, free: int) -> None:
        super().__init__(
            f"a backup in {folder} takes {needed >> 20} MiB while it is made, and {free >> 20} MiB"
            " are free; name a folder on another disk"
        )


class BackupDamaged(Failure):
    """A file that is no backup, or no longer what was written."""

    code = "backup_damaged"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is not a complete backup: {why}; use another one")


class DatabaseDamaged(Failure):
    """A database file cannot be read as one."""

    code = "database_damaged"

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{path} is damaged ({why}); {REMEDY}")


@dataclass(frozen=True, slots=True)
class BackupEntry:
    """One file of a backup."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What a backup holds, and what made it."""

    made_at: str
    host: str
    torchloom: str
    schemas: Mapping[str, str]
    files: tuple[BackupEntry, ...]
    format: str = FORMAT
    version: int = OF_FILES

    def text(self) -> bytes:
        """Return the manifest as it is written."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class CopyPace:
    """How gently a copy is made: pages of a step, and how long to rest after one."""

    pages: int = 64
    rest: float = 2.0  # as long as the step took, times this
    least: float = 0.001
    sleep: Callable[[float], None] = time.sleep


PACE = CopyPace()


def back_up(
    place: DatabasePlace, home: Path, target: Path, pace: CopyPace = PACE
) -> BackupManifest:
    """Write a backup that is whole and checked when it appears under its name."""
    if target.exists():
        raise UserError(f"{target} exists; name another file, or a folder to have one named")
    copy = _copy_of_tables(place) if place.folder is None else _copy_of_files(place.folder)
    prepare_folder(target.parent)
    require_room(target.parent, 2 * copy.size)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        schemas = copy.write(work, pace)
        _copy_keys(home / "plane", work)
        manifest = _manifest(work, schemas, copy.version)
        packed = work / "backup"
        _pack(packed, manifest, work, pace)
        for _ in verified(packed, manifest):
            pass
        packed.rename(target)
        _sync_folder(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return manifest


@dataclass(frozen=True, slots=True)
class _DatabaseCopy:
    """How databases of one kind are copied; `write` returns their schemas."""

    version: int
    size: int  # bytes of the originals
    write: Callable[[Path, CopyPace], dict[str, str]]


def _copy_of_files(folder: Path) -> _DatabaseCopy:
    databases = [folder / f"{part}.db" for part in PARTS]
    if not all(path.exists() for path in databases):
        raise NothingToBackUp(folder)

    def write(work: Path, pace: CopyPace) -> dict[str, str]:
        copy_databases(databases, work, pace)
        return {part: schema_of(work / f"{part}.db") for part in PARTS}

    return _DatabaseCopy(OF_FILES, sum(size_of(path) for path in databases), write)


def _copy_of_tables(place: DatabasePlace) -> _DatabaseCopy:
    from torchloom.weaver.store.postgres_backup import copy_tables, size_of_tables

    size = size_of_tables(place.url)
    return _DatabaseCopy(OF_TABLES, size, lambda work, pace: copy_tables(place.url, work, pace))


def prepare_folder(folder: Path) -> None:
    """Make the folder of a backup, if there is none, closed to others."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write a backup into {folder}: {error.strerror}") from error


def require_room(folder: Path, needed: int) -> None:
    """Refuse to fill the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise NoRoom(folder, needed + _SPARE, free)


def size_of(path: Path) -> int:
    """Return how large a database is with what its log holds."""
    sizes = 0
    for each in (path, path.with_name(f"{path.name}-wal")):
        with contextlib.suppress(FileNotFoundError):
            sizes += each.stat().st_size
    return sizes


def copy_databases(sources: list[Path], folder: Path, pace: CopyPace) -> None:
    """Copy databases as they are at one moment; each copy is checked."""
    with contextlib.ExitStack() as stack:
        moments = [(path, stack.enter_context(_moment(path))) for path in sources]
        for path, moment in moments:
            copy = folder / path.name
            _copy(path, moment, copy, pace)
            moment.close()  # its log may be cut from now on
            why = problem_of(copy)
            if why:
                raise DatabaseDamaged(path, why)


def problem_of(path: Path) -> str:
    """Return what SQLite's own check finds wrong with a file; nothing if it is sound."""
    try:
        with contextlib.closing(_opened(path, "immutable=1")) as connection:
            (first, *_) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if first == "ok" else str(first).strip().splitlines()[-1]


def schema_of(path: Path) -> str:
    """Return the schema that a database file has, if any."""
    with contextlib.closing(_opened(path, "immutable=1")) as connection:
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError:  # it has no tables
            return ""
    return str(row[0]) if row else ""


def read_manifest(path: Path) -> BackupManifest:
    """Return the manifest of a backup; a file of another kind or a later version is refused."""
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
            if first is None or first.name != MANIFEST or first.size > _SMALL:
                raise BackupDamaged(path, "it does not begin with a manifest")
            file = tar.extractfile(first)
            content = json.loads(file.read()) if file else {}
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise BackupDamaged(path, f"its manifest cannot be read ({error})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return _understood(path, content)


def verified(path: Path, manifest: BackupManifest) -> Iterator[tuple[BackupEntry, Iterator[bytes]]]:
    """Yield each file of a backup and its content; what differs from the manifest is refused.

    Content that the caller does not take is read all the same.
    """
    expected = {entry.name: entry for entry in manifest.files}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.name == MANIFEST:
                    continue
                entry = expected.pop(member.name, None)
                file = tar.extractfile(member) if member.isreg() else None
                if entry is None or file is None:
                    raise BackupDamaged(
                        path, f"it contains {member.name!r}, which does not belong to it"
                    )
                content = _checked(path, entry, file)
                yield entry, content
                for _ in content:
                    pass
    except tarfile.TarError as error:
        raise BackupDamaged(path, str(error)) from error
    if expected:
        raise BackupDamaged(path, f"it lacks {', '.join(sorted(expected))}")


def _understood(path: Path, content: Any) -> BackupManifest:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BackupDamaged(path, "its manifest is of another kind of file")
    if content.get("version") not in (OF_FILES, OF_TABLES):
        raise UserError(
            f"{path} has version {content.get('version')!r} of the format, made by torchloom"
            f" {content.get('torchloom')!r}; this torchloom reads versions {OF_FILES} and"
            f" {OF_TABLES}: use that one"
        )
    try:
        files = tuple(BackupEntry(**entry) for entry in content.pop("files"))
        return BackupManifest(**content, files=files)
    except (KeyError, TypeError) as error:
        raise BackupDamaged(path, f"its manifest is incomplete ({error})") from error


def _checked(path: Path, entry: BackupEntry, file: IO[bytes]) -> Iterator[bytes]:
    found, size = hashlib.sha256(), 0
    while block := _read(path, file):
        found.update(block)
        size += len(block)
        yield block
    if (size, found.hexdigest()) != (entry.size, entry.sha256):
        raise BackupDamaged(path, f"{entry.name} is not what was written")


def _read(path: Path, file: IO[bytes]) -> bytes:
    try:
        return file.read(_BLOCK)
    except (tarfile.TarError, OSError) as error:
        raise BackupDamaged(path, str(error)) from error


@contextlib.contextmanager
def _moment(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that sees one moment of a database until it is closed."""
    try:
        connection = _opened(path)
        with contextlib.closing(connection):
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield connection
    except sqlite3.DatabaseError as error:
        raise DatabaseDamaged(path, str(error)) from error


def _opened(path: Path, more: str = "") -> sqlite3.Connection:
    """Return a connection of a file that is there."""
    address = f"file:{quote(str(path))}?{more or 'mode=rw'}"
    return sqlite3.connect(address, timeout=30.0, isolation_level=None, uri=True)


def _copy(source: Path, moment: sqlite3.Connection, target: Path, pace: CopyPace) -> None:
    """Copy what a connection sees; between two steps the disk and the writers have their turn."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous=OFF")  # the file is written to the disk below
        rest = CopyRest(target, pace)
        try:
            moment.backup(copy, pages=pace.pages, progress=rest.after_step)
        except sqlite3.DatabaseError as error:
            raise DatabaseDamaged(source, str(error)) from error
        finally:
            rest.close()


class CopyRest:
    """The pauses of one writer of a file, which goes to the disk bit by bit."""

    def __init__(self, path: Path, pace: CopyPace) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._pace = pace
        self._since = time.monotonic()
        self._fresh = self._unsynced = 0

    def after_step(self, status: int, remaining: int, total: int) -> None:
        """Rest after a step of SQLite's copy."""
        self.after(self._pace.pages * 4096)

    def after(self, size: int) -> None:
        """Count so many bytes; rest when they are worth it."""
        self._fresh += size
        self._unsynced += size
        if self._fresh < _BLOCK:
            return
        if self._unsynced >= _SYNCED:
            os.fdatasync(self._fd)
            self._unsynced = 0
        self._fresh = 0
        took = time.monotonic() - self._since
        self._pace.sleep(max(self._pace.least, took * self._pace.rest))
        self._since = time.monotonic()

    def close(self) -> None:
        os.fsync(self._fd)
        os.close(self._fd)


def _copy_keys(plane: Path, folder: Path) -> None:
    for name in KEYS:
        found = plane / name
        if found.is_dir():
            shutil.copytree(found, folder / name)
        elif found.exists():
            shutil.copy2(found, folder / name)


def _manifest(folder: Path, schemas: Mapping[str, str], kind: int) -> BackupManifest:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    paths.sort(key=lambda path: path.suffix != ".db")
    return BackupManifest(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        torchloom=version("torchloom"),
        schemas=schemas,
        files=tuple(_entry(path, str(path.relative_to(folder))) for path in paths),
        version=kind,
    )


def _entry(path: Path, name: str) -> BackupEntry:
    with path.open("rb") as file:
        return BackupEntry(
            name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
        )


def _pack(target: Path, manifest: BackupManifest, folder: Path, pace: CopyPace) -> None:
    """Write the one file; readable by this user alone from its first byte on."""
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    rest = CopyRest(target, pace)
    with open(fd, "wb") as out, contextlib.closing(rest):
        with tarfile.open(fileobj=out, mode="w:") as tar:
            text = manifest.text()
            tar.addfile(_head(MANIFEST, len(text)), io.BytesIO(text))
            for entry in manifest.files:
                with (folder / entry.name).open("rb") as file:
                    tar.addfile(_head(entry.name, entry.size), _Paced(file, rest))
        out.flush()


def _head(name: str, size: int) -> tarfile.TarInfo:
    head = tarfile.TarInfo(name)
    head.size, head.mode, head.mtime = size, 0o600, int(time.time())
    return head


class _Paced(io.RawIOBase):
    """A file that is read no faster than its copy may be written."""

    def __init__(self, file: IO[bytes], rest: CopyRest) -> None:
        self._file = file
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._rest.after(len(data))
        return data


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
