"""Which process speaks for a rank: the one that was started as it, none of its children.

Looked at before the user's first line, so it imports next to nothing.
"""

import os

from torchloom.worker.environment import OWNER_VARIABLE, PAGE_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

_TRIES = 3
_STARTED = 19  # field 22 of /proc/PID/stat, counted after the name in brackets


def take(env: "MutableMapping[str, str]") -> bool:
    """Claim the right to speak for the rank; a child of one that has it gets none."""
    ours = f"{os.getpid()}:{started()}"
    if env.get(OWNER_VARIABLE, ours) != ours:
        return False
    env[OWNER_VARIABLE] = ours
    return True


def claim(env: "MutableMapping[str, str]") -> bool:
    """Do the same among processes that are not each other's children: the first one gets it.

    Whoever it was has written itself beside the rank's page; one that is gone has no right left.
    """
    if not take(env):
        return False
    page = env.get(PAGE_VARIABLE)
    if not page:
        return True
    ours, path = env[OWNER_VARIABLE], f"{page}.owner"
    for _ in range(_TRIES):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if _lives(path, ours):
                del env[OWNER_VARIABLE]
                return False
        else:
            with open(fd, "w") as file:
                file.write(ours)
            return True
    return False


def started(pid: "int | str" = "self") -> int:
    """Return a process' start time in the kernel's ticks; 0 where it does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[_STARTED])


def _lives(path: str, ours: str) -> bool:
    """Tell whether another process has the right and lives; if not, let the right go."""
    try:
        with open(path) as file:
            theirs = file.read()
    except OSError:
        return False  # it was let go just now
    pid, _, ticks = theirs.partition(":")
    if theirs == ours or not pid:  # half written: it is being taken
        return theirs != ours
    if str(started(pid)) == ticks:
        return True
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False  # another one did
    return False
