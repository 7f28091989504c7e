"""Strike: what each kind of fault needs, aims at, does, and how it is undone; one table of each.

Whatever lasts is written down before it happens, so that somebody else can undo it.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torchloom.cli.chaos import clocks, databases, disks, links, processes, shards
from torchloom.cli.chaos.kinds import kind_of
from torchloom.cli.chaos.plan import Fault
from torchloom.cli.chaos.record import Strike
from torchloom.cli.chaos.targets import Aim, Undo, Victim
from torchloom.errors import LoomError, UserError

_SHOWN = 5  # problems of a plan in one message


class Way(NamedTuple):
    """How faults of one kind are struck."""

    problem: Callable[[Fault, Victim], str]  # why that cannot be done here, with the remedy
    aim: Callable[[Fault, Victim], Aim | None]  # nothing: what is meant is gone
    strike: Callable[[Aim], bool]  # false: it was gone when it was struck


_PART = Way(processes.no_part, processes.aim_part, processes.sending(signal.SIGKILL))
WAYS: Mapping[str, Way] = {
    "kill": Way(processes.no_rank, processes.aim_rank, processes.sending(signal.SIGKILL)),
    "stop": Way(processes.no_rank, processes.aim_rank, processes.sending(signal.SIGSTOP)),
    "raise": Way(processes.no_listener, processes.aim_rank, processes.provoke),
    "kill-agent": _PART,
    "kill-weaver": _PART,
    "kill-nats": _PART,
    "kill-postgres": Way(
        databases.no_server, databases.aim_server, processes.sending(signal.SIGKILL)
    ),
    "cut-link": Way(links.no_link, links.aim_link, links.cut),
    "slow-link": Way(links.no_link, links.aim_link, links.slow),
    "corrupt-shard": Way(shards.no_shard, shards.aim_shard, shards.damage),
    "disk-full": Way(disks.no_disk, disks.aim_disk, disks.fill),
    "clock-step": Way(clocks.no_clock, clocks.aim_clock, clocks.step),
}
UNDOING: Mapping[str, Callable[[Undo], None]] = {
    processes.CONTINUE: processes.go_on,
    databases.START: databases.start,
    links.UP: links.mend,
    links.FAST: links.quicken,
    shards.PUT_BACK: shards.put_back,
    disks.FREE: disks.free,
    clocks.BACK: clocks.set_back,
}


class NotPossible(UserError):
    """A plan asks for what cannot be done here; nothing of it was begun."""

    code = "chaos_not_possible"

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        shown = "; ".join(self.problems[:_SHOWN])
        more = len(self.problems) - _SHOWN
        super().__init__(f"{shown}; and {more} more" if more > 0 else shown)


def check(plan: Iterable[Fault], victim: Victim) -> None:
    """Refuse a plan of which a part cannot be done, before anything of it is."""
    asked: dict[Fault, str] = {}
    for fault in plan:
        alike = replace(fault, at=0.0, lasts=None)
        if alike not in asked:
            asked[alike] = WAYS[fault.kind].problem(alike, victim)
    if problems := [why for why in asked.values() if why]:
        raise NotPossible(problems)


def aim(fault: Fault, victim: Victim) -> Aim | None:
    """Return what a fault would hit now."""
    return WAYS[fault.kind].aim(fault, victim)


def strike(planned: Strike, found: Aim | None) -> Strike:
    """Hit what was aimed at; return what came of it."""
    if found is None:
        why = f"nothing to hit: {kind_of(planned.kind).hits} is not there"
        return replace(planned, outcome="missed", why=why)
    planned = replace(planned, target=found.target)
    at = time.time()
    try:
        hit = WAYS[planned.kind].strike(found)
    except (LoomError, OSError) as error:  # the world said no: nothing was done
        return replace(planned, outcome="refused", why=str(error))
    if not hit:
        return replace(planned, outcome="missed", why="it was gone when it was to be struck")
    return replace(planned, outcome="struck", struck_at=at)


def undo(note: Undo) -> None:
    """Take a fault away again; doing it twice does no harm."""
    UNDOING[note["do"]](note)
