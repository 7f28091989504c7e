"""Attach a threadlet to an unmodified program as soon as it imports torch's optimizers.

It runs before the user's first line and fails open: on any error, the program runs without it.
"""

import functools
import sys

from torchloom.worker.environment import (
    AGENT_VARIABLE,
    ATTACH_VARIABLE,
    INCARNATION_VARIABLE,
    OWNER_VARIABLE,
    PAGE_VARIABLE,
    variables,
)
from torchloom.worker.process import rendezvous
from torchloom.worker.programs.frameworks import observe_frameworks
from torchloom.worker.threadlet import inner_ranks
from torchloom.worker.threadlet.import_hook import when_imported
from torchloom.worker.threadlet.owner import become, claim, is_taken, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

_MODULE = "torch.optim.optimizer"
_GROUPS = "torch.distributed.distributed_c10d"


def attach() -> None:
    """Attach when torch's optimizers are imported, if there is an agent or a progress page."""
    env = variables()
    if INCARNATION_VARIABLE in env:
        prepare_recovery()
    if env.get(ATTACH_VARIABLE) == "0" or not (env.get(AGENT_VARIABLE) or env.get(PAGE_VARIABLE)):
        return
    try:
        if inner_ranks.is_launcher(sys.orig_argv):
            inner_ranks.admit(env)
        elif take(env):
            when_imported(_MODULE, _begin)
            observe_frameworks()
    except Exception as error:  # training continues without a threadlet
        note(error)


def attach_the_first() -> None:
    """Attach in an interpreter that may be any child of a rank.

    If the rank is no Python program, the first interpreter that imports torch's optimizers reports
    for it. If its launcher has ranks of its own, each of them does.
    """
    env = variables()
    if env.get(ATTACH_VARIABLE) == "0":
        return
    if not inner_ranks.is_on_host(env):
        return
    if inner_ranks.is_launcher(sys.orig_argv):
        inner_ranks.admit(env)
        return
    if not inner_ranks.has_own_place(env):
        rendezvous.leave_to_parent()
    if inner_ranks.has_own_place(env):
        when_imported(_MODULE, _begin_inner)
    elif OWNER_VARIABLE not in env:
        when_imported(_MODULE, _begin_if_first)
    else:
        when_imported(_MODULE, _begin_child)
        when_imported(_GROUPS, _begin_in_group)
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


def _guarded(begin: "Callable[[ModuleType], None]") -> "Callable[[ModuleType], None]":
    def call(module: "ModuleType") -> None:
        try:
            begin(module)
        except Exception as error:  # training continues without a threadlet
            note(error)

    return call


@_guarded
def _begin_if_first(module: "ModuleType") -> None:
    if claim(variables()):
        _observe(module)


@_guarded
def _begin(module: "ModuleType") -> None:
    if take(variables()):  # not in a child that was forked meanwhile
        inner_ranks.admit(variables())
        _observe(module)


@_guarded
def _begin_inner(module: "ModuleType") -> None:
    """Report for the rank that a launcher inside this job has given to this process."""
    env = variables()
    if seat := inner_ranks.take_own_place(env):
        _observe(module, seat)
    else:
        module.register_optimizer_step_pre_hook(_Unseen())


@_guarded
def _begin_child(module: "ModuleType") -> None:
    """Observe a child of the rank's process, which may become a rank when it joins a group."""
    from torchloom.worker.threadlet.threadlet import current

    current()  # without a link
    become(variables())
    _observe(module)


@_guarded
def _begin_in_group(module: "Any") -> None:
    """Report for the rank that this process has in the program's process group, once it has one."""
    real = module.init_process_group

    @functools.wraps(real)
    def init_process_group(*args: "Any", **kwargs: "Any") -> "Any":
        result = real(*args, **kwargs)
        try:
            _sit()
        except Exception as error:  # training continues without a threadlet
            note(error)
        return result

    module.init_process_group = init_process_group


def _sit() -> None:
    from torchloom.worker.threadlet.threadlet import current

    env, (rank, world) = variables(), inner_ranks.group()
    if world < 2 or not is_taken(env) or inner_ranks.is_separate(env, rank):
        return
    if seat := inner_ranks.take_place(env, rank, world):
        current(seat=seat)
    else:
        sys.modules[_MODULE].register_optimizer_step_pre_hook(_Unseen())


class _Unseen:
    """Records once that this process takes steps."""

    def __init__(self) -> None:
        self._is_recorded = False

    def __call__(self, *step: object) -> None:
        if not self._is_recorded:
            self._is_recorded = True
            inner_ranks.leave_unseen(variables())


def _observe(module: "ModuleType", seat: "Mapping[str, str] | None" = None) -> None:
    from torchloom.worker.programs.program import observe_torch
    from torchloom.worker.threadlet.threadlet import current

    observe_torch(current(seat=seat), module)
