"""Have one launch an app on a host at a time: two with the same id would end each other's ranks."""

import fcntl
import os
import time

from torchloom.errors import Failure
from torchloom.launch.folder import RunFolder
from torchloom.launch.sockets import socket_path

CLAIMS = "claims"  # a file of which each run has one byte locked, far beyond its end
_PLACES = (1 << 61) - 1  # so many that two ids hardly ever have one
_PATIENCE = 60.0  # seconds for one that came to nothing to clear up
_LOOK = 0.01


class RunTaken(Failure):
    """There is a run of this id, or somebody is about to make one."""

    code = "run_taken"

    def __init__(self, app_id: str) -> None:
        super().__init__(f"there is a run {app_id}; `loom show {app_id}` shows it")


class RunGoesOn(Failure):
    """Somebody else has had the run go on, or it runs."""

    code = "run_goes_on"

    def __init__(self, app_id: str) -> None:
        super().__init__(
            f"{app_id} runs, or is being resumed by somebody else; `loom show {app_id}` shows it"
        )


def claim(app_id: str) -> None:
    """Make this process the only one on this host that may be the run of an id, until it ends.

    The kernel gives it to the next when the process is gone. A run that its maker did not agree
    to is waited for: it goes within moments.
    """
    run, deadline = RunFolder.named(app_id), time.monotonic() + _PATIENCE
    file = os.open(socket_path(CLAIMS), os.O_RDWR | os.O_CREAT, 0o600)
    while not _lock(file, _place(app_id)):
        if run.is_agreed() or time.monotonic() > deadline:
            raise RunTaken(app_id)
        time.sleep(_LOOK)
    if run.exists():
        raise RunTaken(app_id)


def claim_again(app_id: str, attempt: int) -> None:
    """The same for a run that has ended and goes on with an attempt. Of two, one is refused.

    Only the last processes of the life before are waited for.
    """
    run, deadline = RunFolder.named(app_id), time.monotonic() + _PATIENCE
    file = os.open(socket_path(CLAIMS), os.O_RDWR | os.O_CREAT, 0o600)
    while not _lock(file, _place(app_id)):
        record = run.record()
        is_leaving = record.is_over() and any(one.is_alive() for one in record.owners())
        if not is_leaving or time.monotonic() > deadline:
            raise RunGoesOn(app_id)
        time.sleep(_LOOK)
    record = run.record().truth()
    if not record.is_over() or record.restarts >= attempt:
        raise RunGoesOn(app_id)


def _lock(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _place(app_id: str) -> int:
    return int.from_bytes(app_id.encode()) % _PLACES
