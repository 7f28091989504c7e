"""A job's folder in memory on this node: the files its ranks meet in, and their progress pages."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from torchloom import settings

HOME_FILE = "home"  # whose state folder knows the run
PAGE_SIZE = 4096
_OWN_PAGES = "pages"  # what only a rank itself knows: a folder for each, written by it alone
_SHARED_MEMORY = Path("/dev/shm")


def folder(app_id: str) -> Path:
    """Return where a job's folder in memory is, or would be."""
    base = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return base / f"loom-{app_id}-{os.getuid()}"


def make(app_id: str) -> Path | None:
    """Return the job's folder, made if need be; none where there is no room for one."""
    place = folder(app_id)
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        (place / HOME_FILE).write_text(str(settings.loom_home()))
        return place
    return None


def page(app_id: str, name: str) -> Path:
    """Return where the page of a rank's life is, or was."""
    return folder(app_id) / f"page-{name}"


def make_page(app_id: str, name: str) -> str:
    """Return the path of an empty page that a new life of a rank writes its progress to."""
    if make(app_id) is None:
        return ""
    path = page(app_id, name)
    with contextlib.suppress(OSError):
        path.write_bytes(bytes(PAGE_SIZE))
        path.chmod(0o600)
        return str(path)
    return ""


def hand_on(app_id: str, owner: str, life: int) -> None:
    """Have what a rank has left for its next life be that one's, even if it never looks at it."""
    mark = folder(app_id) / _OWN_PAGES / owner / "life"
    with contextlib.suppress(OSError, ValueError):
        if int(mark.read_text()) == life - 1:
            partial = mark.with_name("life.handed-on")
            partial.write_text(str(life))
            partial.replace(mark)


def remove(app_id: str) -> None:
    """Leave nothing of a job in memory."""
    shutil.rmtree(folder(app_id), ignore_errors=True)
