"""Attach a threadlet to an unmodified program as soon as it imports torch's optimizers.

It runs before the user's first line and fails open: on any error, the program runs without it.
"""

import sys

from torchloom.worker.environment import (
    AGENT_VARIABLE,
    ATTACH_VARIABLE,
    INCARNATION_VARIABLE,
    OWNER_VARIABLE,
    PAGE_VARIABLE,
    variables,
)
from torchloom.worker.programs.frameworks import observe_frameworks
from torchloom.worker.threadlet.import_hook import when_imported
from torchloom.worker.threadlet.owner import claim, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_MODULE = "torch.optim.optimizer"


def attach() -> None:
    """Attach when torch's optimizers are imported, if there is an agent or a progress page."""
    env = variables()
    if INCARNATION_VARIABLE in env:
        prepare_recovery()
    if env.get(ATTACH_VARIABLE) == "0" or not (env.get(AGENT_VARIABLE) or env.get(PAGE_VARIABLE)):
        return
    try:
        if take(env):
            when_imported(_MODULE, _begin)
            observe_frameworks()
    except Exception as error:  # training continues without a threadlet
        note(error)


def attach_the_first() -> None:
    """Attach in an interpreter that may be any child of a rank that is not a Python program.

    The first interpreter that imports torch's optimizers reports for the rank.
    """
    env = variables()
    if env.get(ATTACH_VARIABLE) != "0" and OWNER_VARIABLE not in env:
        when_imported(_MODULE, _begin_if_first)
        observe_frameworks()


def prepare_recovery() -> None:
    """Hook the creation of the program's process group, which live recovery has to replace.

    A rank that replaces another gets a stand-in group without peers until its steps begin.
    """
    from torchloom.worker.recovery import ddp, leave, standin

    try:
        standin.install() if standin.is_wanted(variables()) else leave.watch()
        ddp.watch()
    except Exception as error:  # then all ranks are restarted instead
        note(error)


def note(error: BaseException) -> None:
    """Write to the rank's log why no threadlet is attached."""
    what = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"loom: not attached to this process, training continues: {what}\n")


def _begin_if_first(module: "ModuleType") -> None:
    try:
        if claim(variables()):
            _begin(module)
    except Exception as error:  # training continues without a threadlet
        note(error)


def _begin(module: "ModuleType") -> None:
    try:
        if take(variables()):  # not in a child that was forked meanwhile
            from torchloom.worker.programs.program import observe_torch
            from torchloom.worker.threadlet.threadlet import current

            observe_torch(current(), module)
    except Exception as error:  # training continues without a threadlet
        note(error)
