"""Where the database is: next to the runs, on a local disk if they are not, or where a URL says.

SQLite locks and shares memory through its files; network file systems do neither as it needs.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from torchloom.doctor.folders import Mount, existing, mount_of, parse_mounts
from torchloom.errors import Failure, UserError, require_extra
from torchloom.unix import make_private

VARIABLE = "LOOM_DATABASE"
_LASTING = Path("/var/tmp")  # local everywhere, and there after a reboot
INCOMPLETE = "restore.incomplete"  # there while files are moved: a plane does not start then
_POSTGRES = ("postgresql", "postgres")


class UnknownDatabase(UserError):
    """The URL names a database that is not supported."""

    code = "unknown_database"

    def __init__(self, scheme: str) -> None:
        super().__init__(
            f"{VARIABLE} begins with {scheme!r}; it takes postgresql://USER@HOST/NAME,"
            " and without it SQLite files are kept under LOOM_HOME"
        )


class FolderUnsafe(Failure):
    """Another user owns the folder for the database."""

    code = "database_folder_unsafe"

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(
            f"cannot keep the database in {folder}: {why};"
            f" set LOOM_HOME to a local folder, or {VARIABLE} to a Postgres URL"
        )


class RestoreIncomplete(Failure):
    """A restore was interrupted while it moved files."""

    code = "restore_incomplete"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"a restore into {folder} was interrupted; run `loom restore` again with its file"
        )


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A folder with two SQLite files, or a Postgres URL; `note` says why it is not the default."""

    folder: Path | None
    url: str = ""
    note: str = ""

    @property
    def state(self) -> str:
        """Return what `state` is called in messages."""
        return self.name_of("state")

    def name_of(self, part: str) -> str:
        """Return what a database is called in messages; a URL is shown without its password."""
        return str(self.folder / f"{part}.db") if self.folder else f"{shown(self.url)} ({part})"


def place_of(
    home: Path, env: Mapping[str, str], mounts: Iterable[Mount] | None = None, uid: int = -1
) -> DatabasePlace:
    """Return where the plane of a state folder keeps its database."""
    url = env.get(VARIABLE, "")
    if url:
        scheme = urlsplit(url).scheme.partition("+")[0]
        if scheme not in _POSTGRES:
            raise UnknownDatabase(scheme)
        require_extra(f"{VARIABLE}={scheme}://...", "psycopg", "postgres", "unset it")
        return DatabasePlace(None, f"postgresql://{url.partition('://')[2]}")
    folder = home / "plane"
    mount = mount_of(existing(folder).resolve(), _mounts() if mounts is None else mounts)
    if mount is None or not mount.is_network:
        return DatabasePlace(folder)
    moved = _local(folder, os.getuid() if uid < 0 else uid)
    return DatabasePlace(
        moved, note=f"{folder} is on {mount.kind}, a network file system: kept in {moved}"
    )


def prepare(folder: Path) -> None:
    """Make a folder for the database that only this user can enter."""
    try:
        shared = (_LASTING, Path(tempfile.gettempdir()))
        if folder.parent.parent in shared:  # else a folder that the user chose
            make_private(folder.parent)
        make_private(folder)
    except OSError as error:
        raise FolderUnsafe(folder, error.strerror or str(error)) from error


def shown(url: str) -> str:
    """Return a URL fit to be printed."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.username or ""
    return parts._replace(netloc=f"{user}@{host}" if user else host, query="").geturl()


def _local(folder: Path, uid: int) -> Path:
    base = _LASTING if os.access(_LASTING, os.W_OK) else Path(tempfile.gettempdir())
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return base / f"torchloom-{uid}" / name


def _mounts() -> tuple[Mount, ...]:
    try:
        return parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:  # not Linux
        return ()
