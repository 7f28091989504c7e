"""Judge what a job called each fault: the right rank and reason, and nobody who was not hit."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.rows import Row
from torchloom.cli.chaos.checking.strikes import Struck

SOONER = 0.25  # seconds that two clocks of one host may seem apart
AFTER = 0.5  # seconds in which the last word about a fault may still come

_KILLED = "exit_signal_9_rank_{}"
_GIVEN_UP = (_KILLED, "hang_rank_{}", "heartbeat_timeout_worker_{}")
_NAMES = {  # what a job may call it
    "kill": (_KILLED,),
    "stop": _GIVEN_UP,
    "raise": ("exit_code_1_rank_{}",),
    "cut-link": ("node_lost_.*", "exit_.*_rank_.*"),
    "clock-step": _GIVEN_UP,
}
_MUST = ("kill", "raise")  # a process has ended: the job has to say so
_NOBODY = re.compile("collective_error_rank_.*|recovered|watched.*")  # blames nobody for an end


@dataclass(frozen=True, slots=True)
class Name:
    """What a fault was called; `is_right` is nothing where there was nothing to say."""

    word: str
    is_right: bool | None
    why: str = ""
    time: float | None = None  # when it was first said


def name_of(found: Evidence, fault: Struck) -> Name:
    """Return what the job called a fault."""
    if found.base.why:
        return Name("", None, found.base.why)
    said = [(time, word) for time, word in _said(found) if _is_in(fault, time)]
    mine = [(time, word) for time, word in said if _fits(fault, word)]
    if wrong := next((word for time, word in said if not _is_right(found, time, word)), ""):
        return Name(wrong, False, f"it says {wrong}, which nothing has hit")
    if mine:
        return Name(mine[0][1], True, time=mine[0][0])
    return _end_of(found, fault) if fault.kind in _MUST else Name("", None)


def _end_of(found: Evidence, fault: Struck) -> Name:
    """Return how the process that was hit ended, as the job has it.

    Of several deaths in one recovery one is its reason; each has an event of its own. A process
    that was hit twice ends by one of both.
    """
    hits = [one for one in found.faults if one.process == fault.process]
    for row in found.base.events:
        if row["kind"] == "exit" and row["rank"] == fault.rank and _is_process(row, fault):
            word = _word(row["facts"]["code"], row["rank"])
            if any(_fits(one, word) for one in hits):
                return Name(word, True, time=row["time"])
            return Name(word, False, f"it says {word} of the process that was hit")
    return Name("", False, "no event names it")


def _is_process(row: Row, fault: Struck) -> bool:
    return fault.process is not None and row["facts"].get("pid") == fault.process[0]


def _word(code: int, rank: int) -> str:
    return f"exit_signal_{-code}_rank_{rank}" if code < 0 else f"exit_code_{code}_rank_{rank}"


def _said(found: Evidence) -> Sequence[tuple[float, str]]:
    """Return all reasons for which the job was not simply running, with their times."""
    rows = [
        row
        for row in found.base.events
        if row["kind"] in ("regrouping", "live_ended", "restart", "kill")
        or (row["kind"] == "job_state" and row["facts"].get("after") == "RECOVERING")
    ]
    return [(row["time"], row["reason"]) for row in rows if row["reason"]]


def _is_in(fault: Struck, time: float) -> bool:
    end = float("inf") if fault.recovered is None else fault.recovered + AFTER
    return fault.at - SOONER <= time <= end


def _fits(fault: Struck, word: str) -> bool:
    rank = ".*" if fault.rank is None else str(fault.rank)
    return any(re.fullmatch(name.format(rank), word) for name in _NAMES.get(fault.kind, ()))


def _is_right(found: Evidence, time: float, word: str) -> bool:
    if _NOBODY.fullmatch(word):
        return True
    return any(_is_in(fault, time) and _fits(fault, word) for fault in found.faults)
