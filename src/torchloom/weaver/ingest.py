"""Batches of records: what they mean is taken in, then they are stored, then answered."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from torchloom.bus import subjects
from torchloom.bus.codec import Reader
from torchloom.bus.messages import Batch, FromRank, Head, Message, Metrics, Register, Stored
from torchloom.weaver.journal import Journal
from torchloom.weaver.reports import Reports
from torchloom.weaver.sending import Sender
from torchloom.weaver.store import Numbered, RecordWriter, Store
from torchloom.weaver.store.snapshot import RecordsLost

_MOST = 2**62  # a number beyond it is no number of a record


class Ingest:
    """Between the bus and the writer's thread.

    Reports act before they are stored: a weaver that dies in between hears them again.
    """

    def __init__(
        self,
        store: Store,
        reports: Reports,
        journal: Journal,
        sender: Sender,
        dropped: Counter[str],
    ) -> None:
        self._epoch = store.state.epoch
        self._reports = reports
        self._journal = journal
        self._sender = sender
        self._dropped = dropped
        self._batches: Reader[Batch] = Reader(Batch, dropped)
        self._records: Reader[Message] = Reader(FromRank, dropped)
        self._loop = asyncio.get_running_loop()
        self._agents: dict[tuple[str, int, str], str] = {}
        self.writer: RecordWriter = store.writer(self._stored)
        self.stored = 0
        self.on_metrics: Callable[[Metrics], None] = lambda metrics: None
        self.on_stored: Callable[[str], None] = lambda job: None
        self._reported = _reported(store)

    async def batch(self, subject: str, data: bytes, reply: str) -> None:
        """An agent sends records of one life."""
        said = self._batches.read(data)
        if said is None:
            return
        if subjects.agent_of(subject) != said.agent:
            self._dropped["foreign_agent"] += 1
            return
        if not self._reports.may_speak(said.agent, said.head.job):
            self._dropped["foreign_job"] += 1
            return
        if not 0 < said.first <= _MOST or not -_MOST < said.head.rank < _MOST:
            self._dropped["malformed"] += 1
            return
        records = [self._record(said.head, data) for data in said.records]
        self._report(said, records)
        self._reports.settle()
        dropped = max(0, min(said.dropped, _MOST))
        numbered = Numbered(said.head, said.first, records, dropped, said.follows)
        self._agents[numbered.life] = said.agent
        self.writer.submit(numbered)

    def _record(self, head: Head, data: bytes) -> Message | None:
        """Return a record of this life; one that is none keeps its number and is nothing."""
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
        """Take in what has not been heard before."""
        life = (batch.head.job, batch.head.rank, batch.head.incarnation)
        heard = self._reported.get(life, 0)
        for number, record in enumerate(records, batch.first):
            if number <= heard or isinstance(record, Register | None):
                continue
            if isinstance(record, Metrics):
                self.on_metrics(record)
            else:
                self._reports.take(batch.agent, record)
        last = batch.first + len(records) - 1
        if batch.follows <= heard:
            self._reported[life] = max(heard, last)

    def _stored(self, batch: Numbered, upto: int) -> None:
        """Called in the writer's thread, after the commit."""
        self._loop.call_soon_threadsafe(self._answer, batch, upto)

    def _answer(self, batch: Numbered, upto: int) -> None:
        agent = self._agents[batch.life]
        self.stored += len(batch.records)
        self._sender.soon(agent, Stored(batch.head, self._epoch, upto))
        self.on_stored(batch.head.job)
        self._journal.wake()


def _reported(store: Store) -> dict[tuple[str, int, str], int]:
    """Return how far each life's records are known; where they cannot be read, of none."""
    try:
        rows = store.records.received()
    except RecordsLost:
        return {}
    return {(row.job, row.rank, row.incarnation): row.upto for row in rows}
