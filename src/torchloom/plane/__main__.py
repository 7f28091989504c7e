"""Run a plane, unless this user has one: `python -m torchloom.plane [--pinned] ...`."""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchloom import settings
from torchloom.client import plane
from torchloom.errors import Failure, LoomError
from torchloom.launch.keeper.spawn import reset_signals
from torchloom.plane import lock
from torchloom.plane.credentials import credentials
from torchloom.plane.parts import COMMANDS, PlaneOptions
from torchloom.plane.process import Plane, complaint

_LIMIT = 20.0  # seconds for a plane that is ending to be gone
_POLL = 0.02


class HomeUnusable(Failure):
    """The plane cannot write to its state folder."""

    code = "home_unusable"

    def __init__(self, error: OSError) -> None:
        why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        home = settings.loom_home()
        super().__init__(
            f"the plane cannot write to {home} ({why}); "
            "make room or give it write access, or set LOOM_HOME to another folder"
        )


def main(words: Sequence[str], commands: Mapping[str, tuple[str, ...]] = COMMANDS) -> int:
    """Run this user's plane until it ends; return at once when there is another."""
    _stand_apart()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        with _alone() as alone:
            if not alone:
                _report({"ok": "other"})
                return 0
            plane = Plane(PlaneOptions.read(words), credentials(), settings.environment(), commands)
            code = plane.run(_report)
    except (LoomError, OSError) as raised:
        error = raised if isinstance(raised, LoomError) else HomeUnusable(raised)
        logging.error("the plane cannot start: %s", error)
        _report(complaint(error))
        return error.exit_code
    if plane.is_homeless:  # the locks are free again by now
        kept = ["--pinned"] if plane.status()["pinned"] else []
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *kept])
    return code


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Hold both locks; yield false when a plane that answers has one. Wait for one that is ending.

    One lock lies with the sockets, the other in the state folder: shells with different runtime
    folders would each get the first.
    """
    deadline, home = time.monotonic() + _LIMIT, settings.plane_pointer()
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with contextlib.ExitStack() as stack:
            folder = plane.made_folder()
            got = stack.enter_context(lock.hold(folder / "lock"))
            got = got and stack.enter_context(lock.hold_home(home, folder))
            if got or _takes_calls():
                yield got
                return
        if time.monotonic() > deadline:
            remedy = f"its pid is the fourth line of {home}: end it"
            raise Failure(f"another plane of this LOOM_HOME runs and does not answer; {remedy}")
        time.sleep(_POLL)


def _takes_calls() -> bool:
    try:
        plane.call(plane.control(), 1.0).close()
    except OSError:
        return False
    return True


def _stand_apart() -> None:
    """Leave the caller's session; the umask stays the user's, for it is that of jobs, too."""
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.chdir(os.sep)


def _report(message: Mapping[str, Any]) -> None:
    """Report to the process that started us, once; later output goes to the log alone."""
    with contextlib.suppress(OSError):  # it waits no longer
        os.write(1, json.dumps(message).encode() + b"\n")
    os.dup2(2, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
