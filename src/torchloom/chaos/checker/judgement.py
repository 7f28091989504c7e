"""The judge of a series of faults: looks after each, and says at the end what held."""

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
    promises.one_life,
    promises.counts_once,
    promises.nothing_left,
    promises.within_limits,
    promises.nothing_let_out,
)
_OVER = ("SUCCEEDED", "FAILED", "CANCELLED")


class NumberedFault(Protocol):
    """A fault, as far as it matters here: its number."""

    @property
    def n(self) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """All that can be said of a series."""

    case: Case
    found: JobEvidence
    verdicts: tuple[PromiseVerdict, ...]
    faults: tuple[tuple[Struck, Name, Cost], ...]
    is_exact: bool | None
    state: str  # of the job, as its launch last wrote it


class Checker:
    """Looks at one job while it is struck, and judges it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._looks: list[Observation] = []

    def look(self, n: int) -> None:
        """Look at what is there behind a fault; -1: before the first."""
        self._looks.append(look(self.case, n, self.case.checkpoints))

    def verdicts(self) -> tuple[PromiseVerdict, ...]:
        """Judge what there is by now."""
        return _verdicts(gather(self.case, tuple(self._looks), is_over=False, whole=False))

    def judged(self) -> Judged:
        """Judge all of it; what is left behind only when the job is over."""
        state = str(status(self.case.run).get("state", ""))
        found = gather(self.case, tuple(self._looks), state in _OVER)
        named = [(fault, name_of(found, fault)) for fault in found.faults]
        faults = tuple((fault, name, cost_of(found, fault, name)) for fault, name in named)
        exact = promises.is_exact(found)
        return Judged(self.case, found, _verdicts(found), faults, exact, state)


def _verdicts(found: JobEvidence) -> tuple[PromiseVerdict, ...]:
    return tuple(judge(found) for judge in JUDGES)


class CaseJudge:
    """What the one who strikes calls."""

    def __init__(self, case: Case) -> None:
        self.checker = Checker(case)
        self._told: set[str] = set()

    def begin(self, head: object) -> None:
        """Look once before anything is struck."""
        self.checker.look(-1)

    def judge(self, strike: NumberedFault) -> Sequence[str]:
        """Look behind a fault; return each promise that was broken since, in a sentence."""
        self.checker.look(strike.n)
        broken = [one for one in self.checker.verdicts() if one.answer is PromiseAnswer.BROKEN]
        news = [f"{one.name}: {one.fact}" for one in broken if one.name not in self._told]
        self._told.update(one.name for one in broken)
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
    """Return the judge of a job, by its id and its run's folder."""
    return CaseJudge(case_of(job, folder, env or {}, against, api, log, no_log))
