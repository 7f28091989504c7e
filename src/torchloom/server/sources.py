"""Read what is new of jobs, from where a reader stands to where another does: blocking, by time."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchloom.server.drafts import (
    Draft,
    Standing,
    of_happening,
    of_line,
    of_segments,
    of_told,
)
from torchloom.server.joblogs import Files, Output, ends_of, merged, outputs_of, record_of
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.series import curves

RANKS = 64  # whose logs are followed where a listener names none
_PAGE = 1000  # events that are read at a time
_POINTS = 20_000  # points that are read at a time
_LINES = 2000  # lines that are read at a time


@dataclass(frozen=True, slots=True)
class Found:
    """What was read, by time, and how far; there may be more."""

    drafts: list[Draft]
    upto: Standing
    is_all: bool


class Sources:
    """Events and metrics of both databases; safe in several threads."""

    def __init__(self, store: PlaneReader) -> None:
        self._store = store

    def now(self) -> Standing:
        """Return where everything ends that is stored so far."""
        happened = self._store.state.last_happened(limit=1)
        told = self._store.records.last_events(limit=1)
        arrived = curves.news(self._store.records).next
        return Standing(happened[-1].seq if happened else 0, told[-1].id if told else 0, arrived)

    def news(self, at: Standing, jobs: Collection[str]) -> Found:
        """Return what some jobs have that is new."""
        happened = self._store.state.happened(None, at.happened, _PAGE)
        told = self._store.records.events(None, at.told, _PAGE)
        points = curves.news(self._store.records, at.arrived, jobs, _POINTS)
        ways = [
            (of_happening(row) for row in happened if row.job in jobs),
            (of_told(row) for row in told if row.job in jobs),
            of_segments(points.segments),
        ]
        upto = Standing(
            happened[-1].seq if happened else at.happened,
            told[-1].id if told else at.told,
            max(points.next, at.arrived),
        )
        count = sum(len(segment.steps) for segment in points.segments)
        is_all = len(happened) < _PAGE and len(told) < _PAGE and count < _POINTS
        return Found(_by_time(ways), upto, is_all)

    def between(self, job: str, at: Standing, goal: Standing) -> Found:
        """Return what one job has from here to there, or the first of it."""
        happened = self._store.state.happened(job, at.happened, _PAGE)
        told = self._store.records.events(job, at.told, _PAGE)
        points = curves.news(self._store.records, at.arrived, [job], _POINTS)
        metrics = list(_behind(at.row, of_segments(points.segments)))
        if points.is_whole:
            metrics = [draft for draft in metrics if draft.body["seq"] <= goal.arrived]
        ways = [
            (of_happening(row) for row in happened if row.seq <= goal.happened),
            (of_told(row) for row in told if row.id <= goal.told),
            metrics,
        ]
        is_end = not points.segments or points.next >= goal.arrived
        upto = Standing(
            _upto([row.seq for row in happened], goal.happened),
            _upto([row.id for row in told], goal.told),
            max(goal.arrived, at.arrived) if is_end else points.next,
        )
        is_all = is_end and (upto.happened, upto.told) == (goal.happened, goal.told)
        return Found(_by_time(ways), upto, is_all)


class LogSource:
    """The logs of one job: of its first ranks, and of those that somebody has named."""

    def __init__(self, files: Files, job: str) -> None:
        self._files = files
        self._job = job
        self._ranks: set[int] = set(range(RANKS))
        self.outputs: list[Output] = []
        self._is_over = False

    def look(self, ranks: Collection[int] = ()) -> None:
        """Find out which outputs there are, and whether more will come of them."""
        self._ranks |= set(ranks)
        record = record_of(self._files, self._job)
        self.outputs = outputs_of(record, self._ranks, self._files.account)
        self._is_over = record is not None and record.truth().is_over()

    def follows(self, ranks: Collection[int]) -> bool:
        """Tell whether the logs of these ranks are among those that are read."""
        return self._ranks.issuperset(ranks)

    def ends(self) -> dict[str, int]:
        """Return where the outputs end now."""
        return ends_of(self.outputs)

    def news(self, at: dict[str, int]) -> list[Draft]:
        """Return the lines since some places, at most a few thousand."""
        lines = merged(self.outputs, at, self._is_over)
        return [of_line(line, self._job) for line, _ in zip(lines, range(_LINES), strict=False)]

    def between(self, at: dict[str, int], goal: dict[str, int]) -> tuple[list[Draft], bool]:
        """Return the lines from here to there, or the first of them, and whether these are all."""
        known = [output for output in self.outputs if at.get(output.key, 0) < goal[output.key]]
        found: list[Draft] = []
        for line in merged(known, at, self._is_over):
            if line.end <= goal[line.output.key]:
                found.append(of_line(line, self._job))
            if len(found) == _LINES:
                return found, False
        return found, True


def _by_time(ways: Sequence[Iterable[Draft]]) -> list[Draft]:
    """Return drafts by time; those of one source stay in their order whatever their clocks say."""
    return list(heapq.merge(*ways, key=lambda draft: draft.time))


def _upto(numbers: list[int], goal: int) -> int:
    """Return how far was read: to the end of a full page, else to where one wanted."""
    return min(numbers[-1], goal) if len(numbers) == _PAGE else goal


def _behind(row: int, drafts: Iterator[Draft]) -> Iterator[Draft]:
    """Leave out what was sent of the first transaction before."""
    first = None
    for draft in drafts:
        first = draft.body["seq"] if first is None else first
        if draft.body["seq"] == first and row > 0:
            row -= 1
            continue
        yield draft
