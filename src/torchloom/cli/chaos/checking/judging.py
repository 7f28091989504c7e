"""The judge of a series of faults: looks after each, and says at the end what held."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torchloom.cli.chaos.checking import bounds, life, lineage, members, stored
from torchloom.cli.chaos.checking.case import Case, case_of, status
from torchloom.cli.chaos.checking.evidence import Evidence, gather
from torchloom.cli.chaos.checking.looking import Look, look
from torchloom.cli.chaos.checking.naming import Name, name_of
from torchloom.cli.chaos.checking.strikes import Struck
from torchloom.cli.chaos.checking.timing import Cost, cost_of
from torchloom.cli.chaos.checking.verdicts import Answer, Verdict

JUDGES = (
    stored.stays_whole,
    stored.never_goes_back,
    lineage.each_once,
    lineage.same_bits,
    life.along_edges,
    members.one_life,
    life.counts_once,
    bounds.nothing_left,
    bounds.within_limits,
    bounds.nothing_let_out,
)
_OVER = ("SUCCEEDED", "FAILED", "CANCELLED")


class Numbered(Protocol):
    """A fault, as far as it matters here: its number."""

    @property
    def n(self) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """All that can be said of a series."""

    case: Case
    found: Evidence
    verdicts: tuple[Verdict, ...]
    faults: tuple[tuple[Struck, Name, Cost], ...]
    is_exact: bool | None
    state: str  # of the job, as its launch last wrote it


class Checker:
    """Looks at one job while it is struck, and judges it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._looks: list[Look] = []

    def look(self, n: int) -> None:
        """Look at what is there behind a fault; -1: before the first."""
        self._looks.append(look(self.case, n, self.case.checkpoints))

    def verdicts(self) -> tuple[Verdict, ...]:
        """Judge what there is by now."""
        return _verdicts(gather(self.case, tuple(self._looks), is_over=False, whole=False))

    def judged(self) -> Judged:
        """Judge all of it; what is left behind only when the job is over."""
        state = str(status(self.case.run).get("state", ""))
        found = gather(self.case, tuple(self._looks), state in _OVER)
        named = [(fault, name_of(found, fault)) for fault in found.faults]
        faults = tuple((fault, name, cost_of(found, fault, name)) for fault, name in named)
        exact = lineage.is_exact(found)
        return Judged(self.case, found, _verdicts(found), faults, exact, state)


def _verdicts(found: Evidence) -> tuple[Verdict, ...]:
    return tuple(judge(found) for judge in JUDGES)


class Judge:
    """What the one who strikes calls."""

    def __init__(self, case: Case) -> None:
        self.checker = Checker(case)
        self._told: set[str] = set()

    def begin(self, head: object) -> None:
        """Look once before anything is struck."""
        self.checker.look(-1)

    def judge(self, strike: Numbered) -> Sequence[str]:
        """Look behind a fault; return each promise that was broken since, in a sentence."""
        self.checker.look(strike.n)
        broken = [one for one in self.checker.verdicts() if one.answer is Answer.BROKEN]
        news = [f"{one.name}: {one.fact}" for one in broken if one.name not in self._told]
        self._told.update(one.name for one in broken)
        return news

    def end(self, chaos: object) -> Mapping[str, Any]:
        """Return the report of the whole series."""
        from torchloom.cli.chaos.report import report_of

        return report_of(self.checker.judged())


def opened(
    job: str,
    folder: Path,
    against: Path | None = None,
    env: Mapping[str, str] | None = None,
    api: str = "",
    log: Path | None = None,
    no_log: str = "",
) -> Judge:
    """Return the judge of a job, by its id and its run's folder."""
    return Judge(case_of(job, folder, env or {}, against, api, log, no_log))
