"""Put a threadlet into a program that knows nothing of it, as soon as it has optimizers.

Called before the user's first line. It fails open: whatever is wrong here, the program runs.
"""

import sys

from torchloom.worker.environment import (
    AGENT_VARIABLE,
    ATTACH_VARIABLE,
    LIFE_VARIABLE,
    OWNER_VARIABLE,
    PAGE_VARIABLE,
    variables,
)
from torchloom.worker.threadlet.import_hook import when_imported
from torchloom.worker.threadlet.owner import claim, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_MODULE = "torch.optim.optimizer"


def attach() -> None:
    """Wait for torch's optimizers, where an agent is there to be told of their steps."""
    env = variables()
    if LIFE_VARIABLE in env:
        look_out()
    if env.get(ATTACH_VARIABLE) == "0" or not (env.get(AGENT_VARIABLE) or env.get(PAGE_VARIABLE)):
        return
    try:
        if take(env):
            when_imported(_MODULE, _begin)
    except Exception as error:  # training goes on without being watched
        note(error)


def attach_the_first() -> None:
    """Do the same in an interpreter that may be any helper of a rank which is no Python program.

    The first of them that has torch's optimizers is the one that trains, and speaks.
    """
    env = variables()
    if env.get(ATTACH_VARIABLE) != "0" and OWNER_VARIABLE not in env:
        when_imported(_MODULE, _begin_if_first)


def look_out() -> None:
    """Be ready for members that come and go: know the group that the program makes.

    One that takes the place of another gets a group without others until its steps begin.
    """
    from torchloom.worker.recovery import leave, standin

    try:
        standin.install() if standin.is_wanted(variables()) else leave.watch()
    except Exception as error:  # then it is started again with all others, as ever
        note(error)


def note(error: BaseException) -> None:
    """Say in the rank's own log that it is not watched, and why."""
    what = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"loom: not attached to this process, training goes on: {what}\n")


def _begin_if_first(module: "ModuleType") -> None:
    try:
        if claim(variables()):
            _begin(module)
    except Exception as error:  # training goes on without being watched
        note(error)


def _begin(module: "ModuleType") -> None:
    try:
        if take(variables()):  # not in a child that was forked meanwhile
            from torchloom.worker.threadlet.threadlet import current

            current().watch(module)
    except Exception as error:  # training goes on without being watched
        note(error)
