"""Hit a process: a rank is killed, held still or made to raise, a part of the plane is killed."""

import signal
from collections.abc import Callable
from pathlib import Path

from torchloom.cli.chaos.kinds import kind_of
from torchloom.cli.chaos.plan import Fault
from torchloom.cli.chaos.targets import PARTS, Aim, Undo, Victim, part, target_of
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.worker.run.steps import SIGNAL

CONTINUE = "continue"


def no_rank(fault: Fault, victim: Victim) -> str:
    """Return why a rank cannot be hit, or nothing."""
    ranks = victim.ranks()
    if not ranks:
        return f"no rank of {victim.job} runs on this host; run `loom chaos` where they are"
    if fault.rank is not None and fault.rank not in ranks:
        return f"no rank {fault.rank} runs here; there are {', '.join(map(str, sorted(ranks)))}"
    return ""


def no_listener(fault: Fault, victim: Victim) -> str:
    """Return why a rank cannot be made to raise, or nothing."""
    if why := no_rank(fault, victim):
        return why
    deaf = [rank for rank, process in victim.ranks().items() if not listens(process)]
    wanted = deaf if fault.rank is None else [rank for rank in deaf if rank == fault.rank]
    if wanted:
        return f"rank {wanted[0]} is in no `run.steps()`; `raise` needs a program that uses it"
    return ""


def aim_rank(fault: Fault, victim: Victim) -> Aim | None:
    """Return the rank that is meant, or the lowest; nothing when it is gone."""
    ranks = victim.ranks()
    rank = fault.rank if fault.rank is not None else min(ranks, default=-1)
    if rank not in ranks:
        return None
    process = ranks[rank]
    undo = {"do": CONTINUE, "process": _told(process)} if fault.kind == "stop" else None
    return Aim(target_of("rank", process, rank), undo, process)


def no_part(fault: Fault, victim: Victim) -> str:
    """Return why a part of the plane cannot be killed, or nothing."""
    name = kind_of(fault.kind).hits
    if part(name) is not None:
        return ""
    if name == "nats":
        return "the plane has no NATS server of its own; unset LOOM_NATS to have one"
    return f"the plane has no {name} here; `loom up` starts one"


def aim_part(fault: Fault, victim: Victim) -> Aim | None:
    """Return the part that is meant; nothing while it is not there."""
    name = kind_of(fault.kind).hits
    process = part(name) if name in PARTS else None
    return Aim(target_of(name, process), None, process) if process else None


def sending(signum: int) -> Callable[[Aim], bool]:
    """Return what sends a signal to the very process that was aimed at."""

    def send(aim: Aim) -> bool:
        return aim.process is not None and aim.process.send(signum)

    return send


def provoke(aim: Aim) -> bool:
    """Have a rank raise, if it listens: it would die of the signal otherwise."""
    process = aim.process
    return process is not None and listens(process) and process.send(SIGNAL)


def listens(process: ProcessIdentity) -> bool:
    """Tell whether a process has a handler for the signal that provokes an exception."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(SIGNAL and int(caught, 16) >> (SIGNAL - 1) & 1)


def go_on(undo: Undo) -> None:
    """Let a process that was stopped run again, if it is still there."""
    ProcessIdentity.from_dict(dict(undo["process"])).send(signal.SIGCONT)


def _told(process: ProcessIdentity) -> dict[str, object]:
    return {
        "host": process.host,
        "boot": process.boot,
        "pid": process.pid,
        "started": process.started,
    }
