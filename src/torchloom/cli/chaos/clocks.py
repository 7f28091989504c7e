"""Hit the clock: that of a rank which runs under libfaketime jumps, and is put right later.

Such a rank reads its time from a file that its environment names; no other process has to do with
it, and the machine's own clock is never touched. Its steady clock must be left alone: a real one
never jumps, and every wait with a limit, of ours or of torch, would be over at once.
"""

import os
from pathlib import Path

from torchloom.cli.chaos.plan import Fault
from torchloom.cli.chaos.targets import Aim, Undo, Victim, target_of
from torchloom.launch.host.identity import ProcessIdentity

BACK = "clock-back"
VARIABLE = "FAKETIME_TIMESTAMP_FILE"
STEADY = "FAKETIME_DONT_FAKE_MONOTONIC=1"
JUMP = 3600.0  # seconds
_LIBRARY = "libfaketime"


def no_clock(fault: Fault, victim: Victim) -> str:
    """Return why no rank's clock can be moved, or nothing."""
    ranks = victim.ranks()
    wanted = [fault.rank] if fault.rank is not None else sorted(ranks)
    if any(rank in ranks and file_of(ranks[rank]) for rank in wanted):
        return ""
    which = f"rank {fault.rank}" if fault.rank is not None else f"no rank of {victim.job}"
    verb = "does not run" if fault.rank is not None else "runs"
    return (
        f"{which} {verb} under libfaketime with {VARIABLE} and {STEADY}; start the job with"
        f" -e LD_PRELOAD=.../libfaketime.so.1 -e {VARIABLE}=FILE -e FAKETIME_NO_CACHE=1"
        f" -e {STEADY}"
    )


def aim_clock(fault: Fault, victim: Victim) -> Aim | None:
    """Return the rank that is meant, or the lowest whose clock can be moved."""
    for rank, process in sorted(victim.ranks().items()):
        path = file_of(process) if fault.rank in (None, rank) else None
        if path is not None:
            undo = {"do": BACK, "path": str(path), "text": _read(path)}
            target = target_of("clock", process, rank, str(path))
            return Aim(target, undo, process, {"by": JUMP if fault.by is None else fault.by})
    return None


def step(aim: Aim) -> bool:
    """Have the clock jump, if whose it is still runs."""
    if aim.process is None or not aim.process.is_alive():
        return False
    _replace(Path(aim.target.name), f"{aim.facts['by']:+f}\n")
    return True


def set_back(undo: Undo) -> None:
    """Put the clock right."""
    path = Path(undo["path"])
    if undo["text"] is not None:
        _replace(path, undo["text"])
    elif path.exists():
        _replace(path, "+0\n")  # without a file, time would stand where it last was


def file_of(process: ProcessIdentity) -> Path | None:
    """Return the file that says a process' time of day; nothing if that is the machine's."""
    folder = Path(f"/proc/{process.pid}")
    try:
        words = (folder / "environ").read_bytes().split(b"\0")
        is_faked = _LIBRARY in (folder / "maps").read_text()
    except OSError:
        return None
    named = next((word for word in words if word.startswith(f"{VARIABLE}=".encode())), b"")
    path = Path(os.fsdecode(named.partition(b"=")[2]))
    is_clock = is_faked and STEADY.encode() in words
    return path if is_clock and path.is_absolute() and os.access(path.parent, os.W_OK) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    """Write it in one step: whoever reads half of it would live in another century."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)
