"""Inject faults: for each kind, its conditions, its target, its action and its undo.

How to undo a lasting fault is written down before it happens, so that another process can do it.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torchloom.chaos.faults import host, processes
from torchloom.chaos.faults.kinds import kind_of
from torchloom.chaos.plan import Fault
from torchloom.chaos.record import Strike
from torchloom.chaos.targets import Aim, Undo, Victim
from torchloom.errors import LoomError, UserError

_SHOWN = 5  # problems of a plan in one message


class FaultAction(NamedTuple):
    """How faults of one kind are injected."""

    problem: Callable[[Fault, Victim], str]  # why it is not possible here, with the remedy
    aim: Callable[[Fault, Victim], Aim | None]  # None: the target is gone
    strike: Callable[[Aim], bool]  # False: the target was gone when it was to be hit


_PART = FaultAction(processes.no_part, processes.aim_part, processes.sending(signal.SIGKILL))
WAYS: Mapping[str, FaultAction] = {
    "kill": FaultAction(processes.no_rank, processes.aim_rank, processes.sending(signal.SIGKILL)),
    "stop": FaultAction(processes.no_rank, processes.aim_rank, processes.sending(signal.SIGSTOP)),
    "raise": FaultAction(processes.no_listener, processes.aim_rank, processes.provoke),
    "kill-agent": _PART,
    "kill-weaver": _PART,
    "kill-nats": _PART,
    "kill-postgres": FaultAction(
        processes.no_server, processes.aim_server, processes.sending(signal.SIGKILL)
    ),
    "cut-link": FaultAction(host.no_link, host.aim_link, host.cut_link),
    "slow-link": FaultAction(host.no_link, host.aim_link, host.slow_link),
    "corrupt-shard": FaultAction(host.no_shard, host.aim_shard, host.damage_shard),
    "disk-full": FaultAction(host.no_disk, host.aim_disk, host.fill_disk),
    "clock-step": FaultAction(host.no_clock, host.aim_clock, host.step_clock),
}
UNDOING: Mapping[str, Callable[[Undo], None]] = {
    processes.CONTINUE: processes.continue_process,
    processes.START: processes.start_server,
    host.UP: host.mend_link,
    host.FAST: host.quicken_link,
    host.PUT_BACK: host.put_back,
    host.FREE: host.free_disk,
    host.BACK: host.set_clock_back,
}


class NotPossible(UserError):
    """A plan has faults that are not possible here; nothing was begun."""

    code = "chaos_not_possible"

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        shown = "; ".join(self.problems[:_SHOWN])
        more = len(self.problems) - _SHOWN
        super().__init__(f"{shown}; and {more} more" if more > 0 else shown)


def check(plan: Iterable[Fault], victim: Victim) -> None:
    """Refuse a plan with impossible faults before anything is done."""
    asked: dict[Fault, str] = {}
    for fault in plan:
        alike = replace(fault, at=0.0, lasts=None)
        if alike not in asked:
            asked[alike] = WAYS[fault.kind].problem(alike, victim)
    if problems := [why for why in asked.values() if why]:
        raise NotPossible(problems)


def aim(fault: Fault, victim: Victim) -> Aim | None:
    """Return the current target of a fault."""
    return WAYS[fault.kind].aim(fault, victim)


def strike(planned: Strike, found: Aim | None) -> Strike:
    """Inject a fault; return its outcome."""
    if found is None:
        why = f"nothing to hit: {kind_of(planned.kind).hits} does not exist"
        return replace(planned, outcome="missed", why=why)
    planned = replace(planned, target=found.target)
    at = time.time()
    try:
        hit = WAYS[planned.kind].strike(found)
    except (LoomError, OSError) as error:  # it was refused: nothing was done
        return replace(planned, outcome="refused", why=str(error))
    if not hit:
        return replace(planned, outcome="missed", why="the target was already gone")
    return replace(planned, outcome="struck", struck_at=at)


def undo(note: Undo) -> None:
    """Undo a fault; doing it twice does no harm."""
    UNDOING[note["do"]](note)
