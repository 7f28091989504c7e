"""Check that a job attributes each fault to the right rank and reason, and compute its cost."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.chaos.checker.evidence import JobEvidence
from torchloom.chaos.checker.readers import DigestLine, DigestLog, Row, Struck

SOONER = 0.25  # seconds that two clocks of one host may seem apart
AFTER = 0.5  # seconds after recovery in which a report about a fault may still arrive
_KILLED = "exit_signal_9_rank_{}"
_GIVEN_UP = (_KILLED, "hang_rank_{}", "heartbeat_timeout_worker_{}")
_NAMES = {  # reasons that a job may report
    "kill": (_KILLED,),
    "stop": _GIVEN_UP,
    "raise": ("exit_code_1_rank_{}",),
    "cut-link": ("node_lost_.*", "exit_.*_rank_.*"),
    "clock-step": _GIVEN_UP,
}
_MUST = ("kill", "raise")  # a process has ended: the job must report it
_NEUTRAL = re.compile("collective_error_rank_.*|recovered|watched.*")  # blames no rank


@dataclass(frozen=True, slots=True)
class Name:
    """The reason that a job reported for a fault; `is_right` is None if none is required."""

    word: str
    is_right: bool | None
    why: str = ""
    time: float | None = None  # of the first report


def name_of(found: JobEvidence, fault: Struck) -> Name:
    """Return the reason that the job reported for a fault."""
    if found.base.why:
        return Name("", None, found.base.why)
    reported = [(time, word) for time, word in _reasons(found) if _is_in(fault, time)]
    mine = [(time, word) for time, word in reported if _fits(fault, word)]
    if wrong := next((word for time, word in reported if not _is_right(found, time, word)), ""):
        return Name(wrong, False, f"it reports {wrong}, which no fault has hit")
    if mine:
        return Name(mine[0][1], True, time=mine[0][0])
    return _end_of(found, fault) if fault.kind in _MUST else Name("", None)


def _end_of(found: JobEvidence, fault: Struck) -> Name:
    """Return how the process that was hit ended, from the job's exit events.

    A recovery after several deaths names one of them as its reason; each has its own exit event. A
    process that was hit twice ends by one of both.
    """
    hits = [one for one in found.faults if one.process == fault.process]
    for row in found.base.events:
        if row["kind"] == "exit" and row["rank"] == fault.rank and _is_process(row, fault):
            word = _word(row["facts"]["code"], row["rank"])
            if any(_fits(one, word) for one in hits):
                return Name(word, True, time=row["time"])
            return Name(word, False, f"it reports {word} for the process that was hit")
    return Name("", False, "no event names it")


def _is_process(row: Row, fault: Struck) -> bool:
    return fault.process is not None and row["facts"].get("pid") == fault.process[0]


def _word(code: int, rank: int) -> str:
    return f"exit_signal_{-code}_rank_{rank}" if code < 0 else f"exit_code_{code}_rank_{rank}"


def _reasons(found: JobEvidence) -> Sequence[tuple[float, str]]:
    """Return all reasons of recoveries, with their times."""
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


def _is_right(found: JobEvidence, time: float, word: str) -> bool:
    if _NEUTRAL.fullmatch(word):
        return True
    return any(_is_in(fault, time) and _fits(fault, word) for fault in found.faults)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one fault; times are seconds since the fault, None if unknown."""

    detected: float | None
    recovered: float | None
    generation: int | None  # that followed it; None if the members stayed the same
    again: int | None  # repeated steps
    lost: int | None  # of those, committed ones
    kept: int | None  # ranks that were not hit and kept their process
    others: int | None  # ranks that were not hit


def cost_of(found: JobEvidence, fault: Struck, name: Name) -> Cost:
    """Return the cost of a fault, from the step digest logs, else from the fault's record."""
    detected = None if name.time is None else max(0.0, name.time - fault.at)
    recorded = None if fault.recovered is None else max(0.0, fault.recovered - fault.at)
    lines = [line for log in found.digest_logs for line in log]
    if not lines:
        return Cost(detected, recorded, None, None, None, None, None)
    before = max((line.generation for line in lines if line.time <= fault.at), default=0)
    newer = (line.generation for line in lines if line.is_applied and line.generation > before)
    after = min(newer, default=None)
    if after is None or not _came_of_it(found, fault, after):
        return Cost(detected, recorded, None, 0, 0, None, None)
    start = _start(lines, after)
    kept, others = _survivors(found, fault, after)
    resumed = _resumed(found.digest_logs, after)
    return Cost(
        detected,
        recorded if resumed is None else max(0.0, resumed - fault.at),
        after,
        max(0, _reached(lines, after) - start),
        max(0, _committed(found, lines, after) - start),
        kept,
        others,
    )


def _came_of_it(found: JobEvidence, fault: Struck, after: int) -> bool:
    """Tell whether a generation began before the recovery of a fault."""
    if fault.recovered is None:
        return True
    lines = (line for log in found.digest_logs for line in log if line.generation == after)
    return min(line.time for line in lines) <= fault.recovered


def _start(lines: list[DigestLine], generation: int) -> int:
    """Return the step after which a generation began."""
    joined = [line.step for line in lines if line.generation == generation and not line.is_applied]
    return min(joined, default=-1)


def _reached(lines: list[DigestLine], after: int) -> int:
    done = (line.step for line in lines if line.is_applied and line.generation < after)
    return max(done, default=-1)


def _committed(found: JobEvidence, lines: list[DigestLine], after: int) -> int:
    """Return the last step that a surviving process had applied, or that a checkpoint has."""
    alive = {line.incarnation for line in lines if line.generation == after}
    applied = (
        line.step
        for line in lines
        if line.is_applied and line.generation < after and line.incarnation in alive
    )
    began = min(line.time for line in lines if line.generation == after)
    saved = (
        row["step"] - 1
        for row in found.base.checkpoints
        if row["state"] == "committed"
        and (row["committed_at"] or began) < began
        and f"ckpt_step_{row['step']:05d}" not in found.hit
    )
    return max((*applied, *saved), default=-1)


def _survivors(found: JobEvidence, fault: Struck, after: int) -> tuple[int, int]:
    """Return how many ranks that were not hit kept their process, and how many were not hit."""
    kept = others = 0
    hit = _hit_with(found, fault, after)
    for rank, log in enumerate(found.digest_logs):
        old = [line.process for line in log if line.generation < after]
        new = [line.process for line in log if line.generation == after]
        if rank not in hit and old and new:
            others += 1
            kept += old[-1] == new[0]
    return kept, others


def _hit_with(found: JobEvidence, fault: Struck, after: int) -> set[int | None]:
    """Return the ranks that were hit since the previous members began to train."""
    lines = [line for log in found.digest_logs for line in log if line.is_applied]
    began = min(line.time for line in lines if line.generation == after)
    trained = [line.generation for line in lines if line.generation < after]
    since = min(
        (line.time for line in lines if line.generation == max(trained, default=-1)), default=0.0
    )
    return {one.rank for one in found.faults if since <= one.at <= began} | {fault.rank}


def _resumed(digest_logs: tuple[DigestLog, ...], after: int) -> float | None:
    """Return when every rank had applied a step in a generation or in a later one."""
    times = [
        next((line.time for line in log if line.is_applied and line.generation >= after), None)
        for log in digest_logs
    ]
    return None if None in times else max(time for time in times if time is not None)
