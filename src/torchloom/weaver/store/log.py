"""The log of arrivals: what a transaction brings is added to its end, and merged now and then.

One short write a transaction makes points durable, whatever the number of their series. Readers
look at what is not merged yet as well; those who follow a job read nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchloom.weaver.store.arrivals import Part, parts, record
from torchloom.weaver.store.chunks import Chunks
from torchloom.weaver.store.points import piece
from torchloom.weaver.store.sheet import Rows, Source
from torchloom.weaver.store.sql import Sql

_LIGHT = 2  # points weigh so much less than the series that each record has
_KEPT_ROWS = 10_000  # of the log, for those who follow

PROGRESS = "SELECT last, merged, waiting FROM progress"
_LATER = "UPDATE progress SET last = ?, merged = ?, waiting = ?"
_NEW = "INSERT INTO arrivals (number, job, points, size, data) VALUES (?,?,?,?,?)"
_WAITING = "SELECT data FROM arrivals WHERE number > ? ORDER BY number"
_SIZES = f"SELECT number, size FROM arrivals ORDER BY number DESC LIMIT {_KEPT_ROWS + 1}"
_OLD = "DELETE FROM arrivals WHERE number <= ?"
_DROPPED = "UPDATE progress SET dropped = ? WHERE dropped < ?"


@dataclass(frozen=True, slots=True)
class Limits:
    """When what has come is merged, by its weight; how many bytes of it are kept after that."""

    enough: int = 1 << 16
    kept: int = 64 << 20


class Log:
    """The log, within one transaction."""

    def __init__(self, sql: Sql, progress: Sequence[int], limits: Limits) -> None:
        self._sql = sql
        self._last, self._merged, self._waiting = progress
        self._limits = limits

    def add(self, rows: Sequence[Rows], ids: Callable[[Source], Sequence[int]]) -> None:
        """Store rows, those of each job together, in the order of their coming."""
        if not rows:
            return
        jobs: dict[str, list[bytes]] = defaultdict(list)
        points: dict[str, int] = defaultdict(int)
        for each in rows:
            job, keys = each.source[0], ids(each.source)
            jobs[job].append(record(each.generation, keys, each.count, each.content))
            points[job] += len(keys) * each.count
            self._waiting += len(keys)
        new = []
        for job, records in jobs.items():
            self._last += 1
            data = b"".join(records)
            new.append((self._last, job, points[job], len(data), data))
        self._sql.many(_NEW, new)
        self._waiting += sum(points.values()) // _LIGHT
        if self._waiting >= self._limits.enough:
            self.merge()
        self._sql.many(_LATER, [(self._last, self._merged, self._waiting)])

    def merge(self) -> None:
        """Put what waits into chunks, and let go what nobody follows any more."""
        come: dict[int, list[Part]] = defaultdict(list)
        for (data,) in self._sql.rows(_WAITING, self._merged):
            for series, part in parts(data):
                come[series].append(part)
        chunks = Chunks(self._sql, self._merged + 1, self._last)
        chunks.add({key: piece(found) for key, found in come.items()})
        self._merged, self._waiting = self._last, 0
        self._forget()

    def _forget(self) -> None:
        size = 0
        for kept, (number, added) in enumerate(self._sql.rows(_SIZES)):
            size += added
            if size > self._limits.kept or kept == _KEPT_ROWS:
                self._sql.many(_OLD, [(number,)])
                self._sql.many(_DROPPED, [(number, number)])
                return
