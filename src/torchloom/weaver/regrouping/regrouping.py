"""Take in what ranks and launch processes say when members of a job change while it runs."""

import signal
from collections import Counter
from dataclasses import replace

from torchloom.bus import regrouping as words
from torchloom.bus.messages import NO_RANK, Register
from torchloom.rules.election import Origin, Plan, Standing
from torchloom.rules.escalation import Limits
from torchloom.rules.generation import Phase
from torchloom.rules.lifecycle import exit_reason
from torchloom.rules.regroup import (
    Arrived,
    Broke,
    Event,
    Finished,
    GivenUp,
    Refused,
    Restored,
    Started,
)
from torchloom.rules.response import Recovery
from torchloom.weaver.commands import Commands
from torchloom.weaver.jobs import Jobs, is_over
from torchloom.weaver.journal import Journal
from torchloom.weaver.regrouping.candidates import Candidates
from torchloom.weaver.regrouping.carrying import Carrying, Gone
from torchloom.weaver.regrouping.saying import Saying
from torchloom.weaver.regrouping.telling import Telling
from torchloom.weaver.regrouping.watched import Watched, ended, happened, newest
from torchloom.weaver.reports import Reports
from torchloom.weaver.responses import policy_of
from torchloom.weaver.roster import OVER, Roster
from torchloom.weaver.shelf import Shelf
from torchloom.weaver.store import StateStore
from torchloom.weaver.store.rows import Job, Rank


class Regrouping:
    """Whoever is watched is dealt with by the rule; others hear that nobody does that."""

    def __init__(
        self,
        state: StateStore,
        jobs: Jobs,
        roster: Roster,
        reports: Reports,
        commands: Commands,
        shelf: Shelf,
        journal: Journal,
        saying: Saying,
        dropped: Counter[str],
    ) -> None:
        self._jobs = jobs
        self._roster = roster
        self._saying = saying
        self._dropped = dropped
        self._telling = Telling(jobs, journal)
        limits = Limits()
        self._candidates = Candidates(limits)
        self._carrying = Carrying(state, reports, commands, shelf, saying, self._telling, limits)
        self._lives: dict[str, words.Lives] = {}  # what launch processes said last
        self.tick = self._carrying.tick

    @property
    def waiting(self) -> frozenset[str]:
        """Return the jobs in which something is unanswered."""
        return self._carrying.waiting

    def launched(self, agent: str, said: Register) -> None:
        """The process that launches a job's ranks is there, at this agent."""
        self._saying.launch_at(said.head.job, agent)

    def take(self, agent: str, said: words.Talk) -> None:
        """Take in what a rank or a launch process says."""
        if isinstance(said, words.Lives):
            self._heard(agent, said)
            return
        rank = self._roster.of_life(said.head.incarnation)
        if rank is None or (rank.job, rank.rank) != (said.head.job, said.head.rank):
            self._dropped["unknown_rank"] += 1
        elif rank.agent != agent:
            self._dropped["foreign_agent"] += 1
        elif rank.state not in OVER:
            self._said(rank, said)

    def given_up(self, rank: Rank, reason: str) -> None:
        """Have a rank that is beyond help replaced."""
        one = self._carrying.get(rank.job)
        if one is not None and one.attempt == rank.attempt and not one.is_over:
            self._carrying.feed(one, [GivenUp(one.who(rank.rank, rank.life), reason)])

    def watched(self) -> frozenset[str]:
        """Return the jobs whose losses are dealt with here."""
        return frozenset(one.job for one in self._carrying.all() if not one.is_over)

    def is_regrouping(self, job: str) -> bool:
        """Tell whether the ranks of a job are about to meet again, or to be started again."""
        one = self._carrying.get(job)
        return one is not None and one.is_regrouping

    def beginning(self, rank: Rank) -> int | None:
        """Return the step with which a rank's generation began; nothing while it does not train."""
        one = self._carrying.get(rank.job)
        if one is None or one.attempt != rank.attempt or one.is_over:
            return 0
        match one.state.record:
            case record if (record.phase, record.generation) != (Phase.TRAINING, rank.generation):
                return None
            case record if isinstance(record.plan, Plan) and record.plan.origin is Origin.PEER:
                return record.plan.start
            case _:
                return 0

    def close(self, job: str) -> None:
        """Leave a job's losses to its launch process: it stops, or cannot be recovered live."""
        self._candidates.forget(job)
        if (one := self._carrying.get(job)) is not None:
            self._carrying.drop(job)
            self._saying.watch(one, False)

    def over(self, job: str) -> None:
        """Know no more of a job that has ended, or has no ranks."""
        self._candidates.forget(job)
        self._lives.pop(job, None)
        self._saying.forget(job)
        if self._carrying.get(job) is not None:
            self._carrying.drop(job)

    def _present(self, job: str, attempt: int) -> Watched | None:
        """Return what is watched of a job; what was of an older attempt is over."""
        one = self._carrying.get(job)
        if one is not None and attempt > one.attempt:
            self._carrying.drop(job)
            return None
        return one

    # What launch processes say.

    def _heard(self, agent: str, said: words.Lives) -> None:
        job = self._jobs.get(said.head.job)
        if said.head.rank != NO_RANK or job is None or is_over(job):
            self._dropped["unknown_job"] += 1
            return
        known = self._lives.get(job.id)
        if not self._saying.is_launch(job.id, agent) or (known and said.attempt < known.attempt):
            return
        self._lives[job.id] = said
        one = self._present(job.id, said.attempt)
        if one is not None and not (one.is_over or one.is_regrouping or _wants_live(job)):
            self.close(job.id)  # a rank has said so since
            one = None
        if one is not None:
            self._carrying.answered(one)
        if one is not None and not one.is_over:
            self._lived(one, said)
        elif not self._begin_if_whole(job.id) and one is None and _has_loss(said):
            self._saying.unwatch(said)

    def _lived(self, one: Watched, said: words.Lives) -> None:
        """Take in which processes of an attempt have ended."""
        if said.room and said.room != one.state.room:
            one.state = replace(one.state, room=dict(said.room))
        if said.store:
            one.store, one.stored = said.store, said.stored
        self._carrying.feed(one, happened(one, said), self._gone(one, said))

    def _gone(self, one: Watched, said: words.Lives) -> list[Gone]:
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

    def _said(self, rank: Rank, said: words.Talk) -> None:
        one = self._present(rank.job, rank.attempt)
        if one is not None and (rank.attempt < one.attempt or one.is_restarting):
            return  # its launch process ends it
        if one is None or (isinstance(said, words.Training) and (one.is_over or said.why)):
            self._unwatched(rank, said)
        elif (event := _event(one, rank, said)) is not None:
            self._carrying.feed(one, [event])

    def _unwatched(self, rank: Rank, said: words.Talk) -> None:
        """Answer a rank whose loss would be its launch process' own to deal with."""
        generation = said.head.generation
        match said:
            case words.Training() if said.why:
                if _wants_live(self._jobs.get(rank.job), is_said=True):
                    self._telling.cannot(rank, said.why)
                self.close(rank.job)
            case words.Training():
                self._candidates.trains(rank, generation, said.step)
                self._begin_if_whole(rank.job)
            case words.Finished():
                self._saying.release(rank, generation)
            case words.Broke():
                self._saying.let_stand(rank, generation)

    def _begin_if_whole(self, job: str) -> bool:
        """Watch an attempt from now on if all of its ranks train and it is to be."""
        one = self._candidates.whole(job, self._lives.get(job))
        if one is None or not _wants_live(self._jobs.get(job)):
            return False
        self._candidates.forget(job)
        self._carrying.begin(one)
        return True


def _event(one: Watched, rank: Rank, said: words.Talk) -> Event | None:
    """Return what a rank says as the rule knows it."""
    who, generation = one.who(rank.rank, rank.life, rank.node), said.head.generation
    match said:
        case words.Training():
            return Started(who, generation)
        case words.Broke():
            return Broke(who, generation, said.is_collective)
        case words.Arrived():
            if said.why:
                one.whys[rank.rank] = said.why
            standing = Standing(said.applied, frozenset(said.pages), frozenset(), bool(said.why))
            return Arrived(who, generation, standing)
        case words.Restored():
            return Restored(who, generation)
        case words.NotRestored():
            return Refused(who, generation, said.why)
        case words.Finished():
            return Finished(who, generation)
    return None


def _has_loss(said: words.Lives) -> bool:
    return any(life.code is not None for life in newest(said.lives).values())


def _wants_live(job: Job | None, is_said: bool = False) -> bool:
    """Tell whether a job is to be recovered live: it said so, or nothing, unless it had to."""
    if job is None or is_over(job):
        return False
    return policy_of(job.facts, can_live=not is_said).recovery is Recovery.LIVE
