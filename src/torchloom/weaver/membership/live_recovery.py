"""Handle the reports of ranks and launch processes about who trains in a job."""

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torchloom.messages.membership import (
    Arrived,
    Broke,
    Finished,
    FromMember,
    ProcessReports,
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
from torchloom.weaver.checkpoints.requests import CheckpointRows
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.events import (
    JobStopping,
    JobVacated,
    Journal,
    LaunchRegistered,
    MemberReported,
)
from torchloom.weaver.health.roster import OVER, Roster
from torchloom.weaver.jobs.registry import JobRegistry, failure_policy, is_over
from torchloom.weaver.jobs.reports import RankReports
from torchloom.weaver.membership.attempt import LiveAttempt, LiveAttempts, ended, happened, newest
from torchloom.weaver.membership.effects import EffectRunner, Gone, JobUpdates, MemberMessages
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import JobRow, RankProcessRow


@dataclass(slots=True)
class Candidate:
    """The ranks of one generation that train: the number of their processes, and their steps."""

    attempt: int
    generation: int
    role: str
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)


class Candidates:
    """Generations of which not all ranks train yet, or whose launch process is missing."""

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
        """Forget which ranks of a job train."""
        self._found.pop(job, None)

    def whole(self, job: str, message: ProcessReports | None) -> LiveAttempt | None:
        """Return an attempt to be recovered live: all its processes run, and train."""
        one = self._found.get(job)
        if one is None or message is None or message.attempt != one.attempt:
            return None
        newest_by_rank = newest(message.lives)
        there = {rank: each.life for rank, each in newest_by_rank.items() if each.code is None}
        is_all = set(there) == set(newest_by_rank) == set(range(len(newest_by_rank)))
        if not is_all or {rank: number for rank, (number, _) in one.ranks.items()} != there:
            return None
        start = max(step for _, step in one.ranks.values())
        whos = [MemberProcess(rank, each.life, each.node) for rank, each in newest_by_rank.items()]
        room: Mapping[str, int] = message.room
        state = trains(
            Holding.REPLICATED, whos, room, one.generation, one.attempt, start, self._limits
        )
        return LiveAttempt(job, one.attempt, one.role, state)


class LiveRecovery:
    """Recover the jobs that are watched by the rules; answer all others that they are not."""

    def __init__(
        self,
        state: StateStore,
        jobs: JobRegistry,
        roster: Roster,
        reports: RankReports,
        commands: CommandDriver,
        checkpoint_rows: CheckpointRows,
        journal: Journal,
        messages: MemberMessages,
        attempts: LiveAttempts,
        dropped: Counter[str],
    ) -> None:
        self._jobs = jobs
        self._roster = roster
        self._messages = messages
        self._dropped = dropped
        self._updates = JobUpdates(jobs, journal)
        self._attempts = attempts
        self._candidates = Candidates(RecoveryLimits())
        self._runner = EffectRunner(
            state, reports, commands, checkpoint_rows, messages, self._updates, attempts
        )
        self._reports: dict[str, ProcessReports] = {}  # the last reports of launch processes
        self.tick = self._runner.tick

    def on_launch_registered(self, registered: LaunchRegistered) -> None:
        """Note through which agent the launch process of a job is reached."""
        self._messages.launch_at(registered.register.head.job, registered.agent)

    def on_member_report(self, reported: MemberReported) -> None:
        """Handle the report of a rank or of a launch process."""
        agent, message = reported.agent, reported.message
        if isinstance(message, ProcessReports):
            self._handle_reports(agent, message)
            return
        rank = self._roster.of_incarnation(message.head.incarnation)
        if rank is None or (rank.job, rank.rank) != (message.head.job, message.head.rank):
            self._dropped["unknown_rank"] += 1
        elif rank.agent != agent:
            self._dropped["foreign_agent"] += 1
        elif rank.state not in OVER:
            self._handle_member(rank, message)

    def given_up(self, rank: RankProcessRow, reason: str) -> None:
        """Have a rank replaced that cannot be helped."""
        one = self._attempts.get(rank.job)
        if one is not None and one.attempt == rank.attempt and not one.is_over:
            self._runner.feed(one, [GivenUp(one.who(rank.rank, rank.life), reason)])

    def watched(self) -> frozenset[str]:
        """Return the jobs whose losses are handled here."""
        return frozenset(one.job for one in self._attempts.all() if not one.is_over)

    def close(self, job: str) -> None:
        """Leave a job's losses to its launch process: it stops, or cannot be recovered live."""
        self._candidates.forget(job)
        if (one := self._attempts.get(job)) is not None:
            self._attempts.drop(job)
            self._messages.watch(one, False)

    def on_job_stopping(self, stopping: JobStopping) -> None:
        """Leave the losses of a job to its launch process: its ranks end on request."""
        self.close(stopping.job)

    def on_job_vacated(self, vacated: JobVacated) -> None:
        """Forget a job that has ended, or has no ranks."""
        job = vacated.job
        self._candidates.forget(job)
        self._reports.pop(job, None)
        self._messages.forget(job)
        if self._attempts.get(job) is not None:
            self._attempts.drop(job)

    def _present(self, job: str, attempt: int) -> LiveAttempt | None:
        """Return the attempt of a job that is watched; an older one is dropped."""
        one = self._attempts.get(job)
        if one is not None and attempt > one.attempt:
            self._attempts.drop(job)
            return None
        return one

    # From launch processes.

    def _handle_reports(self, agent: str, message: ProcessReports) -> None:
        job = self._jobs.get(message.head.job)
        if message.head.rank != NO_RANK or job is None or is_over(job):
            self._dropped["unknown_job"] += 1
            return
        known = self._reports.get(job.id)
        if not self._messages.is_launch(job.id, agent) or (
            known and message.attempt < known.attempt
        ):
            return
        self._reports[job.id] = message
        one = self._present(job.id, message.attempt)
        if one is not None and not (one.is_over or one.is_recovering or _wants_live(job)):
            self.close(job.id)  # a rank has reported that since
            one = None
        if one is not None and message == known and self._has_no_news(one, message):
            return
        if one is not None:
            self._runner.answered(one)
        if one is not None and not one.is_over:
            self._handle_exits(one, message)
        elif not self._begin_if_whole(job.id) and one is None and _has_loss(message):
            self._messages.unwatch(message)

    def _has_no_news(self, one: LiveAttempt, repeated: ProcessReports) -> bool:
        """Return whether nothing waits for what a launch process repeats once a second."""
        has_loss = bool(repeated.lost or ended(repeated.lives))
        return not has_loss and one.job not in self._attempts.busy

    def _handle_exits(self, one: LiveAttempt, message: ProcessReports) -> None:
        """Handle the processes of an attempt that have ended."""
        if message.room and message.room != one.state.room:
            one.state = replace(one.state, room=dict(message.room))
        if message.store:
            one.store, one.stored = message.store, message.stored
        self._runner.feed(one, happened(one, message), self._gone(one, message))

    def _gone(self, one: LiveAttempt, message: ProcessReports) -> list[Gone]:
        """Return the ranks that have ended, and why: our own reason, where we had them ended."""
        found: list[Gone] = []
        for each in ended(message.lives):
            row = self._roster.find(one.job, one.role, each.rank)
            if row is None or (row.attempt, row.life) != (one.attempt, each.life):
                continue
            if row.state not in OVER:
                code = each.code if each.code is not None else 1
                ours = row.reason if code == -signal.SIGKILL and row.state == "up" else ""
                found.append((row, ours or exit_reason(row.rank, code)))
        return found

    # From ranks.

    def _handle_member(self, rank: RankProcessRow, message: FromMember) -> None:
        one = self._present(rank.job, rank.attempt)
        if one is not None and (rank.attempt < one.attempt or one.is_restarting):
            return  # its launch process ends it
        if one is None or (isinstance(message, Training) and (one.is_over or message.why)):
            self._unwatched(rank, message)
            return
        if isinstance(message, Arrived) and message.why:
            one.whys[rank.rank] = message.why
        self._runner.feed(one, [MemberReport(one.who(rank.rank, rank.life, rank.node), message)])

    def _unwatched(self, rank: RankProcessRow, message: FromMember) -> None:
        """Answer a rank whose loss its launch process would handle."""
        generation = message.head.generation
        match message:
            case Training() if message.why:
                if _wants_live(self._jobs.get(rank.job), is_explicit=True):
                    self._updates.cannot(rank, message.why)
                self.close(rank.job)
            case Training():
                self._candidates.trains(rank, generation, message.step)
                self._begin_if_whole(rank.job)
            case Finished():
                self._messages.release(rank, generation)
            case Broke():
                self._messages.let_stand(rank, generation)

    def _begin_if_whole(self, job: str) -> bool:
        """Watch an attempt from now on if all of its ranks train and it is to be recovered live."""
        one = self._candidates.whole(job, self._reports.get(job))
        if one is None or not _wants_live(self._jobs.get(job)):
            return False
        self._candidates.forget(job)
        self._runner.begin(one)
        return True


def _has_loss(message: ProcessReports) -> bool:
    return any(each.code is not None for each in newest(message.lives).values())


def _wants_live(job: JobRow | None, is_explicit: bool = False) -> bool:
    """Return whether a job is to be recovered live; that is the default unless `is_explicit`."""
    if job is None or is_over(job):
        return False
    return failure_policy(job.facts, can_live=not is_explicit).recovery is LossRecovery.LIVE
