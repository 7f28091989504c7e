"""Be a plane, unless this user has one: `python -m torchloom.weaver.plane [--pinned] ...`."""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.client import calls, places
from torchloom.errors import Failure, LoomError
from torchloom.launch.spawn import reset_signals
from torchloom.weaver.plane import lock
from torchloom.weaver.plane.control import complaint
from torchloom.weaver.plane.credentials import credentials
from torchloom.weaver.plane.parts import COMMANDS
from torchloom.weaver.plane.process import Plane
from torchloom.weaver.plane.wishes import Wishes

_LIMIT = 20.0  # seconds for a plane that leaves to be gone
_WORTH_A_LOOK = 0.02


def main(words: Sequence[str], commands: Mapping[str, tuple[str, ...]] = COMMANDS) -> int:
    """Be this user's plane until it leaves; return at once when another is."""
    _stand_apart()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        with _alone(places.made_folder() / "lock") as alone:
            if not alone:
                _report({"ok": "other"})
                return 0
            keys = credentials()
            home = keys.folder.with_name(f"{os.uname().nodename}.lock")
            with lock.hold_home(home, places.folder()):
                plane = Plane(Wishes.read(words), keys, settings.environment(), commands)
                return plane.run(_report)
    except LoomError as error:
        logging.error("the plane cannot start: %s", error)
        _report(complaint(error))
        return error.exit_code


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the lock; yield false when a plane that takes calls has it. One that leaves may go."""
    deadline = time.monotonic() + _LIMIT
    while True:
        with lock.hold(path) as got:
            if got or _takes_calls():
                yield got
                return
        if time.monotonic() > deadline:
            raise Failure(f"another plane holds {path} and does not answer; end it by its pid")
        time.sleep(_WORTH_A_LOOK)


def _takes_calls() -> bool:
    try:
        calls.call(places.control(), 1.0).close()
    except OSError:
        return False
    return True


def _stand_apart() -> None:
    """Be nobody's foreground process; the umask stays the user's, for it is that of jobs, too."""
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.chdir(os.sep)


def _report(message: Mapping[str, Any]) -> None:
    """Tell whoever waits for us, once; from then on only the log hears us."""
    with contextlib.suppress(OSError):  # nobody waits any more
        os.write(1, json.dumps(message).encode() + b"\n")
    os.dup2(2, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
