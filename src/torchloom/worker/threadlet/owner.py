"""Which process reports for a rank: the one that was started as the rank, not its children.

It runs before the user's first line, so it imports almost nothing.
"""

import os

from torchloom.worker.environment import OWNER_VARIABLE, PAGE_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

_TRIES = 3
_STARTED = 19  # field 22 of /proc/PID/stat, counted after the name in brackets


def take(env: "MutableMapping[str, str]") -> bool:
    """Become the process that reports for the rank; False in a child of that process."""
    ours = own_name()
    if env.get(OWNER_VARIABLE, ours) != ours:
        return False
    env[OWNER_VARIABLE] = ours
    return True


def become(env: "MutableMapping[str, str]") -> None:
    """Become the process that reports, in a child that may have a rank of its own."""
    env[OWNER_VARIABLE] = own_name()


def is_taken(env: "MutableMapping[str, str]") -> bool:
    """Tell whether this process reports for the rank."""
    return env.get(OWNER_VARIABLE) == own_name()


def claim(env: "MutableMapping[str, str]") -> bool:
    """Do the same among processes that are not parent and child: the first one wins.

    The winner writes its id to a file beside the rank's page; a dead winner does not count.
    """
    if not take(env):
        return False
    page = env.get(PAGE_VARIABLE)
    if not page or win(f"{page}.owner", env[OWNER_VARIABLE]):
        return True
    del env[OWNER_VARIABLE]
    return False


def win(path: str, ours: str) -> bool:
    """Write the name of this process to a file, unless another live process has."""
    for _ in range(_TRIES):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if _read(path) == ours:
                return True
            if lives(path):
                return False
        else:
            with open(fd, "w") as file:
                file.write(ours)
            return True
    return False


def started(pid: "int | str" = "self") -> int:
    """Return the start time of a process in kernel ticks; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[_STARTED])


def own_name() -> str:
    """Return the name of this process, which no later one on this host has."""
    return f"{os.getpid()}:{started()}"


def lives(path: str) -> bool:
    """Tell whether the process that has won a file is alive; remove the file of a dead one."""
    theirs = _read(path)
    if theirs is None:
        return False  # it was removed just now
    pid, _, ticks = theirs.partition(":")
    if not pid or str(started(pid)) == ticks:  # half written: another process is winning
        return True
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False  # another one did
    return False


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None
