"""A job's folder in memory on this node: the files its ranks meet in, and their progress pages.

/dev/shm takes files of every user, and a job's id is no secret: another user may have made the
name before. A folder is used only if it is ours and closed to others, else it gets another name.
"""

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchloom import settings
from torchloom.unix import is_private, open_private

HOME_FILE = "home"  # whose state folder knows the run
PAGE_SIZE = 4096
_OWN_PAGES = "pages"  # what only a rank itself knows: a folder for each, written by it alone
_SHARED_MEMORY = Path("/dev/shm")
_OTHER_NAME = re.compile(r"\.[0-9a-f]{16}")  # what is appended to a name that is taken
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def base() -> Path:
    """Return the folder in memory that all users share, or the one for temporary files.

    It must be closed to others or sticky: elsewhere a folder of ours could be replaced.
    """
    with contextlib.suppress(OSError):
        mode = _SHARED_MEMORY.stat().st_mode
        if os.access(_SHARED_MEMORY, os.W_OK) and (mode & stat.S_ISVTX or not mode & 0o022):
            return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def folder(app_id: str) -> Path:
    """Return where a job's folder in memory is, or would be."""
    usual = _usual(app_id)
    return usual if is_private(usual) else next(_others(usual), usual)


def make(app_id: str) -> Path | None:
    """Return the job's folder, made if need be; none where there is no room for one."""
    with contextlib.suppress(OSError):
        if not is_private(place := folder(app_id)):
            place = _made(_usual(app_id))
        _write(place, HOME_FILE, os.fsencode(settings.loom_home()))
        return place
    return None


def page(app_id: str, name: str) -> Path:
    """Return where the page of a rank's process is, or was."""
    return folder(app_id) / f"page-{name}"


def make_page(app_id: str, name: str) -> str:
    """Return the path of an empty page that a new process of a rank writes its progress to."""
    place = make(app_id)
    if place is None:
        return ""
    path = place / f"page-{name}"
    with contextlib.suppress(OSError):
        _write(place, path.name, bytes(PAGE_SIZE))
        return str(path)
    return ""


def hand_on(app_id: str, owner: str, number: int) -> None:
    """Hand what a rank has left to its next process, even if that one never looks at it."""
    place = folder(app_id)
    mark = place / _OWN_PAGES / owner / "life"
    with contextlib.suppress(OSError, ValueError):
        if is_private(place) and int(mark.read_text()) == number - 1:
            partial = mark.with_name("life.handed-on")
            partial.write_text(str(number))
            partial.replace(mark)


def remove(app_id: str) -> None:
    """Leave nothing of a job in memory; what is another user's stays."""
    usual = _usual(app_id)
    for place in (usual, *_others(usual)):
        if is_private(place):
            shutil.rmtree(place, ignore_errors=True)


def _usual(app_id: str) -> Path:
    return base() / f"loom-{app_id}-{os.getuid()}"


def _others(usual: Path) -> Iterator[Path]:
    """Yield folders of ours that were made because the usual name was taken."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(usual.parent)):
            is_other = name.startswith(usual.name) and _OTHER_NAME.fullmatch(
                name[len(usual.name) :]
            )
            if is_other and is_private(usual.with_name(name)):
                yield usual.with_name(name)


def _made(usual: Path) -> Path:
    """Make the folder, under a name that cannot be guessed where the usual one is taken."""
    try:
        usual.mkdir(mode=0o700)
    except FileExistsError:
        other = usual.with_name(f"{usual.name}.{secrets.token_hex(8)}")
        other.mkdir(mode=0o700)
        return next(_others(usual), other)  # two that make one agree on the first
    return usual


def _write(place: Path, name: str, content: bytes) -> None:
    """Write a file in a folder, after a look at whose the folder is."""
    within = open_private(place)
    try:
        with open(os.open(name, _WRITTEN, 0o600, dir_fd=within), "wb") as file:
            file.write(content)
    finally:
        os.close(within)
