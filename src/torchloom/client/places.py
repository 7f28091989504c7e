"""Where the plane of a user on this host is found: a folder of sockets that is ours alone."""

import os
from pathlib import Path

from torchloom import settings
from torchloom.errors import Failure
from torchloom.unix import make_private


class PlaneFolderUnsafe(Failure):
    """Somebody else owns the folder of the plane's sockets, or it cannot be made."""

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
    """Return that folder, made if need be, after a look at whose it is."""
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
    """Return where the plane's HTTP server says at which address it answers."""
    return folder() / "server.json"


def log() -> Path:
    """Return what that process has to say."""
    return settings.loom_home() / "plane" / "logs" / f"{os.uname().nodename}-plane.log"
