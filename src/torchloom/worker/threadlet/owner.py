"""Which process speaks for a rank: the one that was started as it, none of its children.

Looked at before the user's first line, so it imports next to nothing.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

ATTACH_VARIABLE = "LOOM_ATTACH"  # 0: leave programs alone that do not ask for a threadlet
AGENT_VARIABLE = "LOOM_AGENT"  # the agent's socket; without it nobody is told anything
PAGE_VARIABLE = "LOOM_PAGE"
OWNER_VARIABLE = "LOOM_THREADLET_OWNER"  # who speaks for the rank; set here, for children

_STARTED = 19  # field 22 of /proc/PID/stat, counted after the name in brackets


def take(env: "MutableMapping[str, str]") -> bool:
    """Claim the right to speak for the rank; a child of one that has it gets none."""
    ours = f"{os.getpid()}:{started()}"
    if env.get(OWNER_VARIABLE, ours) != ours:
        return False
    env[OWNER_VARIABLE] = ours
    return True


def started() -> int:
    """Return the process' start time in the kernel's ticks; 0 where it does not tell."""
    try:
        with open("/proc/self/stat") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[_STARTED])
