"""The worker's one access to the process environment: names of variables, reading, setting.

Values are read when they are used, never at import: a rank is forked from a zygote that has
imported these modules, and gets its own environment after that. Every rank imports this module
before the first line of the user's program, so it imports nothing but `os`.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

# Set by the launcher for its ranks.
AGENT_VARIABLE = "LOOM_AGENT"  # the agent's socket; without it no messages are sent
JOB_VARIABLE = "LOOM_JOB"
JOB_SPEC_VARIABLE = "LOOM_JOB_SPEC"  # the submitted job, as JSON
ATTEMPT_VARIABLE = "LOOM_ATTEMPT"
GENERATION_VARIABLE = "LOOM_GENERATION"
INCARNATION_VARIABLE = (
    "LOOM_LIFE"  # number of the rank's process; set if ranks are replaced one by one
)
PAGE_VARIABLE = "LOOM_PAGE"  # the file of the rank's progress page
STORE_VARIABLE = "LOOM_STORE"  # where the ranks of a generation agree
CHECKPOINT_ROOT_VARIABLE = "LOOM_CHECKPOINT_ROOT"
RESUME_VARIABLE = "LOOM_RESUME"  # the checkpoint to resume from; 1: no checkpoint exists yet
UNTIL_VARIABLE = "LOOM_UNTIL"  # the step at which loops end, whatever data is left
OWN_END_VARIABLE = "LOOM_OWN_END"  # loops whose data ends here or later continue until that step

# Set by the user.
ATTACH_VARIABLE = "LOOM_ATTACH"  # 0: no threadlet in programs that do not call `loom.init`
ATTACH_SKIP_VARIABLE = "LOOM_ATTACH_SKIP"  # adapters that are not installed, by name
COMM_TIMING_VARIABLE = "LOOM_COMM_TIMING"  # N: collectives of every Nth step are timed
DIGESTS_VARIABLE = "LOOM_DIGESTS"  # a folder for digests of every tensor at every step
HANG_VARIABLE = "LOOM_HANG"  # what happens to a rank without progress
HANG_LIMIT_VARIABLE = "LOOM_HANG_LIMIT"  # seconds without progress until that happens
NO_FALLBACK_VARIABLE = "LOOM_NO_FALLBACK"  # 1: gloo does not replace a backend that fails
STEP_LOG_VARIABLE = "LOOM_LEDGER"  # a folder for the step digest log

# Set by the worker, for the children of a rank.
OWNER_VARIABLE = "LOOM_THREADLET_OWNER"  # the process that reports for the rank
INNER_VARIABLE = "LOOM_INNER"  # the place of the rank whose children may be ranks of its job


def variables() -> "MutableMapping[str, str]":
    """Return the environment itself, for functions that take a mapping."""
    return os.environ


def text(name: str, default: str = "") -> str:
    """Return the value of a variable."""
    return os.environ.get(name, default)


def is_set(name: str) -> bool:
    """Tell whether a variable is set, even if it is empty."""
    return name in os.environ


def is_on(name: str) -> bool:
    """Tell whether a switch is set to anything but 0, false or no."""
    return text(name).lower() not in ("", "0", "false", "no")


def export(values: "Mapping[str, str]") -> None:
    """Set variables that torch or a child process reads; our own modules pass values instead."""
    os.environ.update(values)
