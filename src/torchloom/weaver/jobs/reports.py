"""Handle the reports of ranks and launch processes; a repeated report has no effect."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from torchloom.bus import subjects
from torchloom.bus.codec import MessageReader
from torchloom.launch.records.record import RANKS_ENDED
from torchloom.messages.plane import (
    NO_RANK,
    Applied,
    Batch,
    Decided,
    Event,
    FromRank,
    Goodbye,
    Head,
    Message,
    Metrics,
    RankRefusal,
    Ready,
    Register,
    Stored,
)
from torchloom.rules.control.command import Status
from torchloom.rules.lifecycle import RELEASED, exit_reason
from torchloom.specs.states import JobState
from torchloom.weaver.checkpoints.requests import CheckpointRows
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.events import (
    Dispatcher,
    Journal,
    MetricsReceived,
    RankEventReceived,
    RankEventReported,
    RankProcessEnded,
    RecordsStored,
    Sender,
)
from torchloom.weaver.health.devices import DeviceMap
from torchloom.weaver.health.heartbeats import Heartbeats
from torchloom.weaver.health.roster import OVER, Roster
from torchloom.weaver.jobs.registry import RELEASING, JobRegistry, is_launched
from torchloom.weaver.store import NumberedBatch, PlaneStore, RecordWriter
from torchloom.weaver.store.rows import RankProcessRow
from torchloom.weaver.store.series.tables import RecordsLost

_OF_JOB = ("job", "job_ended")
_MOST = 2**62  # the largest number of a record
_LOOK = 0.02  # seconds between two checks for commits
_LAST = 10.0  # seconds in which the last records of a process arrive, if they are to


class RankReports:
    """Passes each report to the parts that it concerns; those of older generations are dropped."""

    def __init__(
        self,
        jobs: JobRegistry,
        roster: Roster,
        devices: DeviceMap,
        commands: CommandDriver,
        checkpoint_rows: CheckpointRows,
        heartbeats: Heartbeats,
        events: Dispatcher,
        dropped: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._roster = roster
        self._devices = devices
        self._commands = commands
        self._checkpoint_rows = checkpoint_rows
        self._heartbeats = heartbeats
        self._events = events
        self._dropped = dropped
        self._clock = clock
        self._last: dict[str, int] = {}  # the steps in which processes ended, by incarnation
        leaving = (job.id for job in jobs.active() if job.facts.get(RELEASING))
        ranks = (rank for job in leaving for rank in roster.ranks(job))
        # When processes ended in order whose last records are on the way, by incarnation.
        self._unread = {rank.incarnation: clock() for rank in ranks}

    def may_speak(self, agent: str, job: str) -> bool:
        """Tell whether an agent may report of a job."""
        return self._jobs.may_speak(agent, job)

    def take(self, agent: str, message: Message) -> None:
        """Handle a report, sent by itself or in a batch of records."""
        match message:
            case Ready() | RankRefusal() | Decided() | Applied():
                rank = self._roster.speaker(message.head, agent)
                if rank is not None and rank.state == "up":
                    self._commands.on_report(rank, message)
            case Goodbye():
                self._goodbye(agent, message)
            case Event() if message.head.rank == NO_RANK or message.kind in _OF_JOB:
                self._of_job(message)
            case Event():
                self._of_rank(agent, message)

    def settle(self) -> None:
        """Store what reports have changed, before the reports themselves are stored."""
        self._commands.settle()
        self._checkpoint_rows.settle()

    def read_all(self, head: Head) -> None:
        """Handle that the last record of a process has arrived: its goodbye."""
        self._unread.pop(head.incarnation, None)

    def is_settled(self, job: str) -> bool:
        """Tell whether all is known that the ranks of a job have written, and all is committed.

        The end of a process is known before its last records, which arrive in batches.
        """
        since = self._clock() - _LAST
        for incarnation in [one for one, ended in self._unread.items() if ended < since]:
            del self._unread[incarnation]
        if any(rank.incarnation in self._unread for rank in self._roster.ranks(job)):
            return False
        return not any(row.job == job for row in self._checkpoint_rows.open())

    async def settled(self, job: str, patience: float) -> None:
        """Wait until all that the ranks of a job have written is committed, as far as possible."""
        deadline = self._clock() + patience
        while self._clock() < deadline:
            if self.is_settled(job):
                return
            await asyncio.sleep(_LOOK)

    def launched(self, head: Head) -> None:
        """Handle that the launch process of a job has registered."""
        job = self._jobs.appear(head.job, head.generation)
        if job is None:
            self._dropped["ended_job"] += 1
        elif not is_launched(job):
            self._jobs.update(Event(head, "job", -1, 0.0, {"launched": True}))

    def job_ended(self, job: str, state: JobState, reason: str, step: int | None = None) -> None:
        """End a job, its ranks and its commands, at the last step that its ranks wrote."""
        ranks = self._roster.ranks(job)
        reached = self._reached(ranks)
        step = reached if step is None else step
        if not self._jobs.end(job, state, reason, step, len(ranks)):
            return
        for rank in ranks:
            self._roster.gone(rank, reason)
        self._devices.forget(*ranks)
        self._commands.job_ended(job, f"the job has ended: {reason}")

    def job_released(self, job: str, left: int) -> None:
        """Store that a job was released and waits to be resumed."""
        ranks = self._roster.ranks(job)
        self._jobs.release(job, left, self._reached(ranks))
        for rank in ranks:
            self._roster.gone(rank, RELEASED)
        self._devices.forget(*ranks)
        self._commands.job_ended(job, "the job was released")

    def may_have_acted(self, job: str, command: str) -> bool:
        """Tell whether ranks may have ended by a command: one that was not refused or aborted."""
        status = self._commands.status(job, command)
        return status is not None and (status is Status.APPLIED or not status.is_final)

    def rank_gone(self, rank: RankProcessRow, reason: str, state: str = "gone") -> None:
        """Store that the process of a rank has ended."""
        if self._roster.gone(rank, reason, state):
            if state == "ended" or reason == exit_reason(rank.rank, 0):
                self._unread[rank.incarnation] = self._clock()
            self._keep_step(rank, self._heartbeats.step(rank))
            self._devices.leave(rank)
            self._commands.gone(rank)
            self._events.publish(RankProcessEnded(rank))
            self._end_if_alone(rank.job)

    def _end_if_alone(self, job: str) -> None:
        """End a job without a launch process when the last of its ranks has ended."""
        known, ranks = self._jobs.get(job), self._roster.ranks(job)
        if known is None or is_launched(known) or any(rank.state not in OVER for rank in ranks):
            return
        failed = [rank for rank in ranks if rank.state == "gone"]
        if failed:
            first = min(failed, key=lambda rank: rank.ended_at or 0.0)
            self.job_ended(job, JobState.FAILED, first.reason)
        else:
            self.job_ended(job, JobState.COMPLETED, RANKS_ENDED)

    def _of_job(self, message: Event) -> None:
        if not message.head.job:
            self._dropped["no_job"] += 1
        elif message.kind == "job":
            self._jobs.update(message)
        elif message.kind == "job_ended":
            self._job_ended(message)

    def _job_ended(self, message: Event) -> None:
        reason = str(message.facts.get("reason") or RANKS_ENDED)
        try:
            state = JobState(str(message.facts.get("state")))
        except ValueError:
            self._dropped["unknown_state"] += 1
            return
        self.job_ended(message.head.job, state, reason)

    def _of_rank(self, agent: str, message: Event) -> None:
        self._events.publish(RankEventReceived(agent, message))
        rank = self._roster.of_incarnation(message.head.incarnation)
        if rank is None or rank.agent != agent or rank.job != message.head.job:
            return  # it is stored as a record all the same
        if message.kind == "exit":
            self.rank_gone(rank, str(message.facts.get("reason") or "exit"))
        self._events.publish(RankEventReported(rank, message))

    def _goodbye(self, agent: str, message: Goodbye) -> None:
        rank = self._roster.speaker(message.head, agent)
        if rank is not None:
            self._keep_step(rank, message.step)
            self.rank_gone(rank, "ended", "ended")

    def _keep_step(self, rank: RankProcessRow, step: int | None) -> None:
        if step is not None:
            self._last.setdefault(rank.incarnation, step)

    def _reached(self, ranks: list[RankProcessRow]) -> int | None:
        """Return the step that all ranks of a job had reached at its end."""
        for rank in ranks:
            self._keep_step(rank, self._heartbeats.step(rank))
        found = [self._last.pop(rank.incarnation, None) for rank in ranks]
        return min((step for step in found if step is not None), default=None)


class BatchIngest:
    """Between the bus and the writer's thread.

    Reports are handled before they are stored: after a crash in between they are sent again.
    """

    def __init__(
        self,
        store: PlaneStore,
        reports: RankReports,
        journal: Journal,
        sender: Sender,
        events: Dispatcher,
        dropped: Counter[str],
    ) -> None:
        self._epoch = store.state.epoch
        self._reports = reports
        self._journal = journal
        self._sender = sender
        self._events = events
        self._dropped = dropped
        self._batches: MessageReader[Batch] = MessageReader(Batch, dropped)
        self._records: MessageReader[Message] = MessageReader(FromRank, dropped)
        self._loop = asyncio.get_running_loop()
        self._agents: dict[tuple[str, int, str], str] = {}
        self.writer: RecordWriter = store.writer(self._stored)
        self.stored = 0
        self._reported = _reported(store)

    async def on_batch(self, subject: str, data: bytes, reply: str) -> None:
        """Handle a batch of records of one process."""
        message = self._batches.read(data)
        if message is None:
            return
        if subjects.agent_of(subject) != message.agent:
            self._dropped["foreign_agent"] += 1
            return
        if not self._reports.may_speak(message.agent, message.head.job):
            self._dropped["foreign_job"] += 1
            return
        if not 0 < message.first <= _MOST or not -_MOST < message.head.rank < _MOST:
            self._dropped["malformed"] += 1
            return
        records = [self._record(message.head, data) for data in message.records]
        self._report(message, records)
        self._reports.settle()
        dropped = max(0, min(message.dropped, _MOST))
        numbered = NumberedBatch(message.head, message.first, records, dropped, message.follows)
        self._agents[numbered.key] = message.agent
        self.writer.submit(numbered)

    def _record(self, head: Head, data: bytes) -> Message | None:
        """Return a record of this process; none for a malformed one, which keeps its number."""
        if not data:
            return None
        record = self._records.read(data)
        if record is None:
            return None
        theirs, ours = record.head, head
        if (theirs.job, theirs.rank) != (ours.job, ours.rank):
            self._dropped["foreign_job"] += 1
            return None
        return record

    def _report(self, batch: Batch, records: Sequence[Message | None]) -> None:
        """Handle the records that were not handled before."""
        key = (batch.head.job, batch.head.rank, batch.head.incarnation)
        known = self._reported.get(key, 0)
        for number, record in enumerate(records, batch.first):
            if number <= known or isinstance(record, Register | None):
                continue
            if isinstance(record, Metrics):
                self._events.publish(MetricsReceived(record))
            else:
                self._reports.take(batch.agent, record)
                if isinstance(record, Goodbye):
                    self._reports.read_all(record.head)
        last = batch.first + len(records) - 1
        if batch.follows <= known:
            self._reported[key] = max(known, last)

    def _stored(self, batch: NumberedBatch, upto: int) -> None:
        """Called in the writer's thread, after the commit."""
        self._loop.call_soon_threadsafe(self._answer, batch, upto)

    def _answer(self, batch: NumberedBatch, upto: int) -> None:
        agent = self._agents[batch.key]
        self.stored += len(batch.records)
        self._sender.soon(agent, Stored(batch.head, self._epoch, upto))
        self._events.publish(RecordsStored(batch.head.job))
        self._journal.wake()


def _reported(store: PlaneStore) -> dict[tuple[str, int, str], int]:
    """Return the last record of each process; empty where records cannot be read."""
    try:
        rows = store.records.received()
    except RecordsLost:
        return {}
    return {(row.job, row.rank, row.incarnation): row.upto for row in rows}
