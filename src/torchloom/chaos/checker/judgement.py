"""The judge of a series of faults: observes the job after each, and gives the verdicts."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchloom.chaos.checker import promises
from torchloom.chaos.checker.attribution import Cost, Name, cost_of, name_of
from torchloom.chaos.checker.case import Case, case_of, status
from torchloom.chaos.checker.evidence import JobEvidence, Observation, gather, look
from torchloom.chaos.checker.promises import PromiseAnswer, PromiseVerdict
from torchloom.chaos.checker.readers import Struck

JUDGES = (
    promises.stays_whole,
    promises.never_goes_back,
    promises.each_once,
    promises.same_bits,
    promises.along_edges,
    promises.one_incarnation,
    promises.counts_once,
    promises.nothing_left,
    promises.within_limits,
    promises.nothing_leaked,
)
_OVER = ("SUCCEEDED", "FAILED", "CANCELLED")


class NumberedFault(Protocol):
    """A fault with its number."""

    @property
    def n(self) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """The judgement of a series."""

    case: Case
    found: JobEvidence
    verdicts: tuple[PromiseVerdict, ...]
    faults: tuple[tuple[Struck, Name, Cost], ...]
    is_exact: bool | None
    state: str  # of the job, as its launch last wrote it


class Checker:
    """Observes one job during a series and judges it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._looks: list[Observation] = []

    def look(self, n: int) -> None:
        """Observe the job after fault `n`; -1: before the first."""
        self._looks.append(look(self.case, n, self.case.checkpoints))

    def verdicts(self) -> tuple[PromiseVerdict, ...]:
        """Judge the evidence so far."""
        return _verdicts(gather(self.case, tuple(self._looks), is_over=False, whole=False))

    def judged(self) -> Judged:
        """Judge everything; leftovers are only searched for after the job has ended."""
        state = str(status(self.case.run).get("state", ""))
        found = gather(self.case, tuple(self._looks), state in _OVER)
        named = [(fault, name_of(found, fault)) for fault in found.faults]
        faults = tuple((fault, name, cost_of(found, fault, name)) for fault, name in named)
        exact = promises.is_exact(found)
        return Judged(self.case, found, _verdicts(found), faults, exact, state)


def _verdicts(found: JobEvidence) -> tuple[PromiseVerdict, ...]:
    return tuple(judge(found) for judge in JUDGES)


class CaseJudge:
    """The judge that a series of faults calls."""

    def __init__(self, case: Case) -> None:
        self.checker = Checker(case)
        self._reported: set[str] = set()

    def begin(self, head: object) -> None:
        """Observe the job before the first fault."""
        self.checker.look(-1)

    def judge(self, strike: NumberedFault) -> Sequence[str]:
        """Observe the job after a fault; return each newly broken promise in a sentence."""
        self.checker.look(strike.n)
        broken = [one for one in self.checker.verdicts() if one.answer is PromiseAnswer.BROKEN]
        news = [f"{one.name}: {one.fact}" for one in broken if one.name not in self._reported]
        self._reported.update(one.name for one in broken)
        return news

    def end(self, chaos: object) -> Mapping[str, Any]:
        """Return the report of the whole series."""
        from torchloom.chaos.report import report_of

        return report_of(self.checker.judged())


def opened(
    job: str,
    folder: Path,
    against: Path | None = None,
    env: Mapping[str, str] | None = None,
    api: str = "",
    log: Path | None = None,
    no_log: str = "",
) -> CaseJudge:
    """Return the judge of a job, given its id and its run's folder."""
    return CaseJudge(case_of(job, folder, env or {}, against, api, log, no_log))
