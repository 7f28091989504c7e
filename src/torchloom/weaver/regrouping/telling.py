"""Have a job's own life follow its live recovery: its state, its generation, its events."""

import time
from collections.abc import Callable
from typing import Any

from torchloom.rules.escalation import Cause
from torchloom.rules.regroup import Began, Commit, Fail, Finish, Restart, Told
from torchloom.specs.job import JobState
from torchloom.weaver.jobs import Jobs
from torchloom.weaver.journal import Journal
from torchloom.weaver.regrouping.watched import Watched
from torchloom.weaver.store.rows import Rank

UNFIT = "unfit"  # a member that has trained says that it cannot go on live
RECOVERED = "recovered"
NOT_LIVE = "not_live"  # among a job's facts: which rank cannot be recovered live, and why


class Telling:
    """All of it is stored in the transaction of the record that makes it so."""

    def __init__(
        self,
        jobs: Jobs,
        journal: Journal,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._journal = journal
        self._now = now
        self._clock = clock
        self._began_at: dict[str, float] = {}  # by our own clock, of recoveries under way

    def begins(self, one: Watched) -> None:
        """An attempt is watched from now on."""
        ranks = len(one.state.record.seats)
        facts = {"attempt": one.attempt, "generation": one.generation, "ranks": ranks}
        self._journal.note("live", one.job, facts=facts)

    def cannot(self, rank: Rank, why: str) -> None:
        """A rank cannot be recovered live: that is noted once, for whoever wanted it."""
        job = self._jobs.get(rank.job)
        known = job.facts.get(NOT_LIVE) or {} if job is not None else {}
        if (known.get("attempt"), known.get("why")) != (rank.attempt, why):
            facts = {"attempt": rank.attempt, "rank": rank.rank, "why": why}
            self._jobs.mark(rank.job, {NOT_LIVE: facts})
            self._journal.note(NOT_LIVE, rank.job, rank=rank.rank, reason=why, facts=facts)

    def told(self, one: Watched, told: Told) -> None:
        """Note one thing that the rule tells."""
        match told:
            case Began():
                self._began(one, told)
            case Commit():
                self._committed(one, told)
            case Restart() | Fail():
                self._given_up(one, told.cause)
            case Finish():
                one.since, one.is_due = None, True
                self._began_at.pop(one.job, None)

    def _began(self, one: Watched, told: Began) -> None:
        if one.since is None:
            one.since, self._began_at[one.job] = self._now(), self._clock()
        self._jobs.regroup(one.job, told.generation)
        self._jobs.turn(one.job, JobState.RECOVERING, told.reason)
        facts = {"generation": told.generation, "mode": str(told.mode), "reason": told.reason}
        self._journal.note("regrouping", one.job, reason=told.reason, facts=facts)

    def _committed(self, one: Watched, told: Commit) -> None:
        took = self._took(one)
        moves = [[m.target, str(m.what), m.step, m.source] for m in told.plan.moves]
        facts: dict[str, Any] = {
            "generation": told.generation,
            "start": told.plan.start,
            "seconds": round(took, 6),
            "moves": moves,
            "inexact": list(told.inexact),
        }
        reason, one.since = one.state.record.reason, None
        self._jobs.turn(one.job, JobState.RUNNING, RECOVERED)
        self._journal.note("recovered", one.job, step=told.plan.start, reason=reason, facts=facts)

    def _took(self, one: Watched) -> float:
        """Return how long a recovery took; one that another weaver began is by the time of day."""
        if one.since is None:
            return 0.0
        began = self._began_at.pop(one.job, None)
        return self._clock() - began if began is not None else max(0.0, self._now() - one.since)

    def _given_up(self, one: Watched, cause: Cause) -> None:
        """Live cannot go on: what a member said of that is the cause, if one did."""
        reason = one.state.record.reason or str(cause)
        new = {seat.rank for seat in one.state.record.seats if seat.is_new}
        is_unfit = cause is Cause.PROLOGUE and not new.intersection(one.whys)
        one.cause, one.since = UNFIT if is_unfit else str(cause), None
        self._began_at.pop(one.job, None)
        self._jobs.turn(one.job, JobState.RECOVERING, reason)
        facts = {"generation": one.generation, "cause": one.cause}
        why = {str(rank): words for rank, words in sorted(one.whys.items())}
        self._journal.note("live_ended", one.job, reason=reason, facts={**facts, "why": why})
