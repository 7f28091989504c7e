"""Take in what ranks and launch processes say when members of a job change while it runs."""

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    FromMember,
    Lives,
    Training,
)
from torchloom.messages.plane import NO_RANK
from torchloom.rules.lifecycle import exit_reason
from torchloom.rules.membership.election import (
    Holding,
    RecoveryLimits,
)
from torchloom.rules.membership.events import GivenUp, MemberReport
from torchloom.rules.membership.live_recovery import trains
from torchloom.rules.membership.seats import MemberProcess
from torchloom.rules.response import LossRecovery
from torchloom.weaver.checkpoints.rows import CheckpointRows
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.events import JobStopping, JobVacated, LaunchRegistered, MemberReported
from torchloom.weaver.health.roster import OVER, Roster
from torchloom.weaver.jobs.registry import JobRegistry, failure_policy, is_over
from torchloom.weaver.jobs.reports import RankReports
from torchloom.weaver.journal import Journal
from torchloom.weaver.membership.attempt import LiveAttempt, LiveAttempts, ended, happened, newest
from torchloom.weaver.membership.effects import EffectRunner, Gone, JobUpdates, MemberMessages
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import JobRow, RankProcessRow


@dataclass(slots=True)
class Candidate:
    """The ranks of one generation that have said that they train: their lives and steps."""

    attempt: int
    generation: int
    role: str
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)


class Candidates:
    """Those of which not all have said so, or whose launch process is not there."""

    def __init__(self, limits: RecoveryLimits) -> None:
        self._limits = limits
        self._found: dict[str, Candidate] = {}

    def trains(self, rank: RankProcessRow, generation: int, step: int) -> None:
        """Note that a rank trains."""
        one = self._found.get(rank.job)
        whose = (rank.attempt, generation, rank.role)
        if one is None or (one.attempt, one.generation, one.role) != whose:
            one = self._found[rank.job] = Candidate(*whose)
        one.ranks[rank.rank] = (rank.life, step)

    def forget(self, job: str) -> None:
        """Have all ranks of a job say it again."""
        self._found.pop(job, None)

    def whole(self, job: str, said: Lives | None) -> LiveAttempt | None:
        """Return an attempt to be watched: all its processes are there, and train."""
        one = self._found.get(job)
        if one is None or said is None or said.attempt != one.attempt:
            return None
        lives = newest(said.lives)
        there = {rank: life.life for rank, life in lives.items() if life.code is None}
        is_all = set(there) == set(lives) == set(range(len(lives)))
        if not is_all or {rank: life for rank, (life, _) in one.ranks.items()} != there:
            return None
        start = max(step for _, step in one.ranks.values())
        whos = [MemberProcess(rank, life.life, life.node) for rank, life in lives.items()]
        room: Mapping[str, int] = said.room
        state = trains(
            Holding.REPLICATED, whos, room, one.generation, one.attempt, start, self._limits
        )
        return LiveAttempt(job, one.attempt, one.role, state)


class LiveRecovery:
    """Whoever is watched is dealt with by the rule; others hear that nobody does that."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        roster: Roster,
        reports: RankReports,
        commands: CommandDriver,
        checkpoint_rows: CheckpointRows,
        journal: Journal,
        saying: MemberMessages,
        attempts: LiveAttempts,
        dropped: Counter[str],
    ) -> None:
        self._jobs = jobs
        self._roster = roster
        self._saying = saying
        self._dropped = dropped
        self._telling = JobUpdates(jobs, journal)
        self._attempts = attempts
        self._candidates = Candidates(RecoveryLimits())
        self._carrying = EffectRunner(
            state, reports, commands, checkpoint_rows, saying, self._telling, attempts
        )
        self._lives: dict[str, Lives] = {}  # what launch processes said last
        self.tick = self._carrying.tick

    def on_launch_registered(self, registered: LaunchRegistered) -> None:
        """Note through which agent the launch process of a job is reached."""
        self._saying.launch_at(registered.register.head.job, registered.agent)

    def on_member_report(self, reported: MemberReported) -> None:
        """Handle the report of a rank or of a launch process."""
        agent, said = reported.agent, reported.message
        if isinstance(said, Lives):
            self._heard(agent, said)
            return
        rank = self._roster.of_life(said.head.incarnation)
        if rank is None or (rank.job, rank.rank) != (said.head.job, said.head.rank):
            self._dropped["unknown_rank"] += 1
        elif rank.agent != agent:
            self._dropped["foreign_agent"] += 1
        elif rank.state not in OVER:
            self._said(rank, said)

    def given_up(self, rank: RankProcessRow, reason: str) -> None:
        """Have a rank that is beyond help replaced."""
        one = self._attempts.get(rank.job)
        if one is not None and one.attempt == rank.attempt and not one.is_over:
            self._carrying.feed(one, [GivenUp(one.who(rank.rank, rank.life), reason)])

    def watched(self) -> frozenset[str]:
        """Return the jobs whose losses are dealt with here."""
        return frozenset(one.job for one in self._attempts.all() if not one.is_over)

    def close(self, job: str) -> None:
        """Leave a job's losses to its launch process: it stops, or cannot be recovered live."""
        self._candidates.forget(job)
        if (one := self._attempts.get(job)) is not None:
            self._attempts.drop(job)
            self._saying.watch(one, False)

    def on_job_stopping(self, stopping: JobStopping) -> None:
        """Leave the losses of a job to its launch process: its ranks end on request."""
        self.close(stopping.job)

    def on_job_vacated(self, vacated: JobVacated) -> None:
        """Forget a job that has ended, or has no ranks."""
        job = vacated.job
        self._candidates.forget(job)
        self._lives.pop(job, None)
        self._saying.forget(job)
        if self._attempts.get(job) is not None:
            self._attempts.drop(job)

    def _present(self, job: str, attempt: int) -> LiveAttempt | None:
        """Return what is watched of a job; what was of an older attempt is over."""
        one = self._attempts.get(job)
        if one is not None and attempt > one.attempt:
            self._attempts.drop(job)
            return None
        return one

    # What launch processes say.

    def _heard(self, agent: str, said: Lives) -> None:
        job = self._jobs.get(said.head.job)
        if said.head.rank != NO_RANK or job is None or is_over(job):
            self._dropped["unknown_job"] += 1
            return
        known = self._lives.get(job.id)
        if not self._saying.is_launch(job.id, agent) or (known and said.attempt < known.attempt):
            return
        self._lives[job.id] = said
        one = self._present(job.id, said.attempt)
        if one is not None and not (one.is_over or one.is_recovering or _wants_live(job)):
            self.close(job.id)  # a rank has said so since
            one = None
        if one is not None:
            self._carrying.answered(one)
        if one is not None and not one.is_over:
            self._lived(one, said)
        elif not self._begin_if_whole(job.id) and one is None and _has_loss(said):
            self._saying.unwatch(said)

    def _lived(self, one: LiveAttempt, said: Lives) -> None:
        """Take in which processes of an attempt have ended."""
        if said.room and said.room != one.state.room:
            one.state = replace(one.state, room=dict(said.room))
        if said.store:
            one.store, one.stored = said.store, said.stored
        self._carrying.feed(one, happened(one, said), self._gone(one, said))

    def _gone(self, one: LiveAttempt, said: Lives) -> list[Gone]:
        """Return which ranks' lives are over, and why: our own reason, where we had them ended."""
        found: list[Gone] = []
        for life in ended(said.lives):
            row = self._roster.find(one.job, one.role, life.rank)
            if row is None or (row.attempt, row.life) != (one.attempt, life.life):
                continue
            if row.state not in OVER:
                code = life.code if life.code is not None else 1
                ours = row.reason if code == -signal.SIGKILL and row.state == "up" else ""
                found.append((row, ours or exit_reason(row.rank, code)))
        return found

    # What ranks say.

    def _said(self, rank: RankProcessRow, said: FromMember) -> None:
        one = self._present(rank.job, rank.attempt)
        if one is not None and (rank.attempt < one.attempt or one.is_restarting):
            return  # its launch process ends it
        if one is None or (isinstance(said, Training) and (one.is_over or said.why)):
            self._unwatched(rank, said)
            return
        if isinstance(said, Arrived) and said.why:
            one.whys[rank.rank] = said.why
        self._carrying.feed(one, [MemberReport(one.who(rank.rank, rank.life, rank.node), said)])

    def _unwatched(self, rank: RankProcessRow, said: FromMember) -> None:
        """Answer a rank whose loss would be its launch process' own to deal with."""
        generation = said.head.generation
        match said:
            case Training() if said.why:
                if _wants_live(self._jobs.get(rank.job), is_said=True):
                    self._telling.cannot(rank, said.why)
                self.close(rank.job)
            case Training():
                self._candidates.trains(rank, generation, said.step)
                self._begin_if_whole(rank.job)
            case Finished():
                self._saying.release(rank, generation)
            case Broke():
                self._saying.let_stand(rank, generation)

    def _begin_if_whole(self, job: str) -> bool:
        """Watch an attempt from now on if all of its ranks train and it is to be."""
        one = self._candidates.whole(job, self._lives.get(job))
        if one is None or not _wants_live(self._jobs.get(job)):
            return False
        self._candidates.forget(job)
        self._carrying.begin(one)
        return True


def _has_loss(said: Lives) -> bool:
    return any(life.code is not None for life in newest(said.lives).values())


def _wants_live(job: JobRow | None, is_said: bool = False) -> bool:
    """Tell whether a job is to be recovered live: it said so, or nothing, unless it had to."""
    if job is None or is_over(job):
        return False
    return failure_policy(job.facts, can_live=not is_said).recovery is LossRecovery.LIVE
