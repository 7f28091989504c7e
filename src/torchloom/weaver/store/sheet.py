"""Turn numbered batches into rows: what is stored already is left out, nothing is skipped."""

import math
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torchloom.bus.messages import Event, Head, Message, Metrics
from torchloom.weaver.store.columns import clean, pack

Life: TypeAlias = tuple[str, int, str]  # job, rank, incarnation
SeriesName: TypeAlias = tuple[str, str, int, str]  # job, name, rank, role

_LARGEST = 2**63  # what a column takes; a hostile step must not end the writer
_LONGEST_NAME = 500


@dataclass(frozen=True, slots=True)
class Numbered:
    """Records of one life from number `first` on; None is one that could not be read.

    It counts only once number `follows` is stored. What is missing between the two was let go by a
    full spool: `dropped` points.
    """

    head: Head
    first: int
    records: Sequence[Message | None]
    dropped: int = 0
    follows: int = 0

    @property
    def life(self) -> Life:
        return clean(self.head.job), self.head.rank, clean(self.head.incarnation)


@dataclass(slots=True)
class Sheet:
    """The rows of one transaction."""

    upto: dict[Life, int] = field(default_factory=dict)
    dropped: dict[Life, int] = field(default_factory=dict)
    points: dict[tuple[SeriesName, int, int], tuple[float, float | None]] = field(
        default_factory=dict
    )
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, batch: Numbered) -> int:
        """Take in what is new of a batch and return up to which number its life is stored now."""
        life, upto = batch.life, self.upto[batch.life]
        if upto < batch.follows:
            return upto  # something before it is still to come
        last = batch.first + len(batch.records) - 1
        for number in range(max(batch.first, upto + 1), last + 1):
            self._record(life, number, batch.records[number - batch.first])
        if last > upto:
            self.upto[life] = last
            self.dropped[life] = self.dropped.get(life, 0) + batch.dropped
        return self.upto[life]

    def _record(self, life: Life, number: int, record: Message | None) -> None:
        if isinstance(record, Metrics):
            self._metrics(life, record)
        elif record is not None:
            generation = _fit(record.head.generation)
            self.events.append((*life[:2], generation, life[2], number, *_told(record)))

    def _metrics(self, life: Life, record: Metrics) -> None:
        job, rank, _ = life
        role = clean(record.head.role[:_LONGEST_NAME])
        keys = [(job, clean(name[:_LONGEST_NAME]), rank, role) for name in record.names]
        generation = _fit(record.head.generation)
        for step, time, values in _rows(record):
            for key, value in zip(keys, values, strict=False):
                if isinstance(value, (int, float)):
                    number = _real(value)
                    self.points[key, step, generation] = time, number


def _rows(record: Metrics) -> Iterator[tuple[int, float, tuple[Any, ...]]]:
    """Yield the rows that have a step and a time; others are nobody's."""
    for row in record.rows:
        if len(row) > 2 and isinstance(row[0], int) and isinstance(row[1], (int, float)):
            step, time = row[0], _real(row[1])
            if -_LARGEST <= step < _LARGEST and time is not None:
                yield step, time, row[2:]


def _real(value: float) -> float | None:
    """Return a number as the database takes it; NaN is nothing there."""
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return None if math.isnan(number) else number


def _told(record: Message) -> tuple[str, int, float, str]:
    """Return kind, step, time and facts of a record that is no metric; acts come as they happen."""
    if isinstance(record, Event):
        return clean(record.kind), _fit(record.step), _real(record.time) or 0.0, pack(record.facts)
    step = getattr(record, "step", None)
    return type(record).__name__.lower(), _fit(step), clock.time(), pack(_facts(record))


def _facts(record: Message) -> Mapping[str, Any]:
    import msgspec

    names = [name for name in record.__struct_fields__ if name not in ("head", "step")]
    return {name: msgspec.to_builtins(getattr(record, name)) for name in names}


def _fit(number: int | None) -> int:
    return min(max(-1 if number is None else number, -_LARGEST), _LARGEST - 1)
