"""Where the plane of a user on this host is found: a folder of sockets that is ours alone."""

import os
from pathlib import Path

from torchloom import settings
from torchloom.errors import Failure
from torchloom.unix import make_private


class PlaneFolderUnsafe(Failure):
    """Another user owns the folder of the plane's sockets, or it cannot be made."""

    code = "plane_folder_unsafe"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"cannot keep the plane's sockets in {path}: {why}; "
            "set XDG_RUNTIME_DIR to a local folder of yours, or unset it"
        )


def folder() -> Path:
    """Return where the plane's sockets, lock and record are; it need not exist.

    It is the same for every shell of this user, whatever its XDG_RUNTIME_DIR.
    """
    return settings.plane_dir()


def made_folder() -> Path:
    """Return that folder, made if need be, after checking its owner."""
    path = folder()
    for one in (path.parent, path):
        try:
            make_private(one)
        except OSError as error:
            raise PlaneFolderUnsafe(one, error.strerror or str(error)) from error
    return path


def door() -> Path:
    """Return where the weaver takes questions."""
    return folder() / "weaver.sock"


def control() -> Path:
    """Return where the process that keeps the plane alive takes questions."""
    return folder() / "plane.sock"


def card() -> Path:
    """Return the file in which the plane's HTTP server publishes its address."""
    return folder() / "server.json"


def log() -> Path:
    """Return the log of that process."""
    return settings.loom_home() / "plane" / "logs" / f"{os.uname().nodename}-plane.log"
