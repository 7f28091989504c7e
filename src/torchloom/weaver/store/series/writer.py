"""The one thread that writes records: pending batches are committed together, then confirmed."""

import logging
import math
import queue
import threading
import time
import time as clock
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from torchloom.messages.plane import Event, Head, Message, Metrics, tag_of
from torchloom.weaver.store.engine import clean, pack
from torchloom.weaver.store.series.points import raw
from torchloom.weaver.store.series.tables import RecordsLost

_LARGEST = 2**63  # what a column takes; a hostile step must not end the writer
_LONGEST_NAME = 500
_QUIET = 10.0  # seconds between two lines about what cannot be stored
TOGETHER = 1024  # batches of one transaction, where so many wait
_log = logging.getLogger(__name__)


IncarnationKey: TypeAlias = tuple[str, int, str]  # job, rank, incarnation
Source: TypeAlias = tuple[str, int, str, tuple[str, ...]]  # job, rank, role, names


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """Records of one process from number `first` on; None is one that could not be read.

    It counts only once number `follows` is stored. What is missing between the two was dropped by a
    full spool: `dropped` points.
    """

    head: Head
    first: int
    records: Sequence[Message | None]
    dropped: int = 0
    follows: int = 0

    @property
    def key(self) -> IncarnationKey:
        return _clean(self.head.job), self.head.rank, _clean(self.head.incarnation)


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbers of one source: a step and a time for each row, and a value for each row and name."""

    source: Source
    generation: int
    count: int
    content: bytes  # all steps, all times, then the values name by name


@dataclass(slots=True)
class RecordSheet:
    """What one transaction stores."""

    upto: dict[IncarnationKey, int] = field(default_factory=dict)
    dropped: dict[IncarnationKey, int] = field(default_factory=dict)
    rows: list[Rows] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, batch: NumberedBatch) -> int:
        """Add the new records of a batch; return up to which number its process is stored."""
        key = batch.key
        upto = self.upto[key]
        if upto < batch.follows:
            return upto  # something before it is still to come
        last = batch.first + len(batch.records) - 1
        for number in range(max(batch.first, upto + 1), last + 1):
            self._record(key, number, batch.records[number - batch.first])
        if last > upto:
            self.upto[key] = last
            self.dropped[key] = self.dropped.get(key, 0) + batch.dropped
        return max(last, upto)

    def _record(self, key: IncarnationKey, number: int, record: Message | None) -> None:
        if isinstance(record, Metrics):
            self._metrics(key, record)
        elif record is not None:
            generation = _fit(record.head.generation)
            self.events.append((*key[:2], generation, key[2], number, *_event_columns(record)))

    def _metrics(self, key: IncarnationKey, record: Metrics) -> None:
        if not record.names or not record.rows:
            return
        names, generation = _names(record.names), _fit(record.head.generation)
        role = _clean(record.head.role[:_LONGEST_NAME])
        for place, *columns in _even(record) or _uneven(record):
            its = names if place is None else (names[place],)
            content = b"".join(map(raw, columns))
            source = (key[0], key[1], role, its)
            self.rows.append(Rows(source, generation, len(columns[0]), content))


def _clean(text: str) -> str:
    return text if text.isascii() and "\0" not in text else clean(text)


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    if max(map(len, names)) <= _LONGEST_NAME and (text := "".join(names)) == _clean(text):
        return names
    return tuple(clean(name[:_LONGEST_NAME]) for name in names)


def _even(record: Metrics) -> list[tuple[Any, ...]] | None:
    """Return all columns at once, where every row has a number for every name."""
    try:
        steps, times, *values = zip(*record.rows, strict=True)
        if len(values) != len(record.names):
            return None
        moments = array("d", times)
        if math.isnan(sum(moments)):
            return None
        numbers = [array("d", column) for column in values]
        return [(None, array("q", steps), moments, *numbers)]
    except (TypeError, ValueError, OverflowError):  # something is missing, or is no number
        return None


def _uneven(record: Metrics) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of each name by itself, of the rows that have a number for it."""
    rows = list(_rows(record))
    for place in range(len(record.names)):
        found = [
            (step, time, _real(cells[place]))
            for step, time, cells in rows
            if place < len(cells) and isinstance(cells[place], (int, float))
        ]
        if found:
            steps, times, values = zip(*found, strict=True)
            yield place, array("q", steps), array("d", times), array("d", values)


def _rows(record: Metrics) -> Iterator[tuple[int, float, tuple[Any, ...]]]:
    """Yield the rows that have a step and a time; others are dropped."""
    for row in record.rows:
        if len(row) > 2 and isinstance(row[0], int) and isinstance(row[1], (int, float)):
            step, time = row[0], _real(row[1])
            if -_LARGEST <= step < _LARGEST and not math.isnan(time):
                yield step, time, row[2:]


def _real(value: float) -> float:
    """Return a number as the database takes it."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _event_columns(record: Message) -> tuple[str, int, float, str]:
    """Return kind, step, time and facts of a record that is no metric; acts come as they happen."""
    if isinstance(record, Event):
        time = _real(record.time)
        return (
            clean(record.kind),
            _fit(record.step),
            0.0 if math.isnan(time) else time,
            pack(record.facts),
        )
    step = getattr(record, "step", None)
    return tag_of(record).lower(), _fit(step), clock.time(), pack(_facts(record))


def _facts(record: Message) -> Mapping[str, Any]:
    import msgspec

    names = [name for name in record.__struct_fields__ if name not in ("head", "step")]
    return {name: msgspec.to_builtins(getattr(record, name)) for name in names}


def _fit(number: int | None) -> int:
    return min(max(-1 if number is None else number, -_LARGEST), _LARGEST - 1)


__all__ = ["NumberedBatch", "RecordWriter", "RecordIngest", "Answer"]

Answer: TypeAlias = Callable[
    [NumberedBatch, int], None
]  # called in the writer's thread, after commit


class RecordIngest(Protocol):
    """Stores batches, all or none."""

    def write(self, batches: list[NumberedBatch]) -> list[int]: ...
    def close(self) -> None: ...


class RecordWriter:
    """Store batches in the order of arrival, and confirm up to which number each process is stored.

    A batch that cannot be stored is not answered: its agent has it still and will send it again.
    """

    def __init__(self, ingest: RecordIngest, answer: Answer) -> None:
        self._ingest = ingest
        self._answer = answer
        self._waiting: queue.SimpleQueue[NumberedBatch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="record-writer", daemon=True)
        self.failures = 0
        self.trouble = ""  # why the last ones were not stored; nothing when they were
        self._logged = -_QUIET

    def start(self) -> None:
        self._thread.start()

    def submit(self, batch: NumberedBatch) -> None:
        """Have a batch stored, in the writer's thread."""
        self._waiting.put(batch)

    @property
    def backlog(self) -> int:
        return self._waiting.qsize()

    def stop(self) -> None:
        """Store what waits, then end."""
        self._waiting.put(None)
        self._thread.join()
        self._ingest.close()

    def _run(self) -> None:
        while True:
            group, is_last = self._take()
            if group:
                self._store(group)
            if is_last:
                return

    def _take(self) -> tuple[list[NumberedBatch], bool]:
        group: list[NumberedBatch] = []
        while (batch := self._waiting.get()) is not None:
            group.append(batch)
            if len(group) == TOGETHER or self._waiting.empty():
                return group, False
        return group, True

    def _store(self, group: list[NumberedBatch]) -> None:
        try:
            upto = self._ingest.write(group)
        except RecordsLost as error:
            self.failures += 1
            self.trouble = str(error)
            return
        except Exception as error:  # full disk, server away, poison: drivers share no class
            self.failures += 1
            self.trouble = str(error)
            self._complain(len(group))
            if len(group) > 1:  # one that can never be stored must not hold up the others
                for batch in group:
                    self._store([batch])
            return
        self.trouble = ""
        for batch, number in zip(group, upto, strict=True):
            self._answer(batch, number)

    def _complain(self, count: int) -> None:
        """Log a failure; one that lasts, now and then."""
        if time.monotonic() - self._logged >= _QUIET:
            self._logged = time.monotonic()
            _log.exception("%d batches could not be stored; their agents keep them", count)
