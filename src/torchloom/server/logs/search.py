"""One page of a job's logs: which lines, from where on, and where the next page begins.

Without a pattern all lines are merged by time. With one, each output is searched in large pieces by
another process, and only the lines that match are read and merged.
"""

import heapq
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from torchloom.server.logs.lines import LEVELS, Output, OutputLine, merged, tail_of
from torchloom.server.logs.matcher import shown

CHUNK = 2000  # lines that are searched between two checks of the clock
MOST_BYTES = 64 << 20  # of a page without enough matches; the next page continues behind them
MOST_SCANNED = 1 << 30  # the same of a search for a pattern, which its time ends before
_LEAST_PIECE, _MOST_PIECE, _PIECES = 1 << 18, 1 << 23, 1 << 26  # bytes of one, and of all outputs
_SLICE = 0.25  # seconds after which a piece may end early


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Filters by time (unix seconds) and level; patterns are searched elsewhere."""

    level: str = ""
    since: float | None = None
    until: float | None = None
    tail: int | None = None

    def is_met(self, line: OutputLine) -> bool:
        return not self.level or LEVELS.index(line.level) >= LEVELS.index(self.level)


class LogSearch:
    """Read on from positions; blocking, of one thread at a time."""

    def __init__(
        self, outputs: list[Output], positions: dict[str, int], query: LogQuery, is_final: bool
    ) -> None:
        self._query = query
        self.positions = {output.key: positions.get(output.key, 0) for output in outputs}
        if not positions:
            self.positions |= beginnings(outputs, query)
        self._lines: Iterator[OutputLine] = merged(outputs, self.positions, is_final)
        self._read = 0
        self.is_done = False

    def take(self, count: int) -> list[OutputLine]:
        """Return the next lines that are wanted, at most so many."""
        found: list[OutputLine] = []
        for line in self._lines:
            if self._is_too_late(line):
                break  # and so is all that follows
            self._read += line.end - line.start
            self.positions[line.output.key] = line.end
            if self._query.is_met(line):
                found.append(line)
            if len(found) == count or self._read > MOST_BYTES:
                return found
        self.is_done = True
        return found

    def _is_too_late(self, line: OutputLine) -> bool:
        return self._query.until is not None and line.time > self._query.until


class PatternSearch:
    """Where a search for a pattern stands in each output; it blocks, and one thread uses it.

    The output that is furthest behind in time is searched next. A line that matches is given out
    when all outputs have been searched up to its time.
    """

    def __init__(
        self, outputs: list[Output], positions: Mapping[str, int], query: LogQuery, is_final: bool
    ) -> None:
        self._outputs = outputs
        self._query = query
        self._is_final = is_final
        self._upto = {output.key: positions.get(output.key, 0) for output in outputs}
        if not positions:
            self._upto |= beginnings(outputs, query)
        self._piece = max(_LEAST_PIECE, min(_MOST_PIECE, _PIECES // max(1, len(outputs))))
        self._waiting: list[tuple[float, int, int, OutputLine]] = []  # found, and not given out yet
        self._stamps = [output.stamps() for output in outputs]
        self._times = [self._time(number) for number in range(len(outputs))]
        self._file: IO[bytes] | None = None
        self.scanned = 0

    @property
    def is_done(self) -> bool:
        """Return whether there is nothing more to find for now."""
        return not self._waiting and min(self._times, default=math.inf) == math.inf

    @property
    def positions(self) -> dict[str, int]:
        """Return where the next page begins: what is found and not given out is found again."""
        found = dict(self._upto)
        for _, _, start, line in self._waiting:
            found[line.output.key] = min(found[line.output.key], start)
        return found

    def question(self, most: int, seconds: float) -> dict[str, Any]:
        """Return what is to be searched next."""
        number = self._next()
        return {
            "path": self._path(self._outputs[number]),
            "start": self._upto[self._outputs[number].key],
            "bytes": self._piece,
            "is_final": self._is_final,
            "most": most,
            "seconds": min(_SLICE, seconds),
        }

    def take(self, answer: Mapping[str, Any], most: int) -> list[OutputLine]:
        """Handle the matches of the requested piece; return the lines that are due."""
        number = self._next()
        output, before = self._outputs[number], self._upto[self._outputs[number].key]
        self._upto[output.key] = answer["end"]
        self.scanned += answer["end"] - before
        for start, end in answer["lines"]:
            line = OutputLine(
                output, start, end, self._stamps[number].time_at(start), _text(output, start, end)
            )
            if self._query.is_met(line) and not self._is_too_late(line.time):
                heapq.heappush(self._waiting, (line.time, number, start, line))
        self._times[number] = self._time(number) if answer["end"] > before else math.inf
        return self._due(most)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        for stamps in self._stamps:
            stamps.close()

    def _path(self, output: Output) -> str:
        """Return by which name the process that searches opens an output.

        That of an account is opened here, with its rights; the process gets that very file.
        """
        if not output.account:
            return str(output.path)
        if self._file is not None:
            self._file.close()
        try:
            self._file = output.open()
        except FileNotFoundError:
            return os.devnull
        return f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def _due(self, most: int) -> list[OutputLine]:
        upto = min(self._times, default=math.inf)
        found: list[OutputLine] = []
        while self._waiting and self._waiting[0][0] <= upto and len(found) < most:
            found.append(heapq.heappop(self._waiting)[3])
        return found

    def _next(self) -> int:
        return min(range(len(self._times)), key=self._times.__getitem__)

    def _time(self, number: int) -> float:
        """Return when the next byte of an output was written; never, where there is none wanted."""
        output = self._outputs[number]
        if size_of(output) <= self._upto[output.key]:
            return math.inf
        time = self._stamps[number].time_at(self._upto[output.key])
        return math.inf if self._is_too_late(time) else time

    def _is_too_late(self, time: float) -> bool:
        return self._query.until is not None and time > self._query.until


def beginnings(outputs: list[Output], query: LogQuery) -> dict[str, int]:
    """Return where a first page begins in each output, where that is not its first byte."""
    if query.since is not None:
        return {output.key: _since(output, query.since) for output in outputs}
    if query.tail is not None:
        return {output.key: tail_of(output, query.tail) for output in outputs}
    return {}


def size_of(output: Output) -> int:
    """Return how many bytes an output has."""
    try:
        with output.open() as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return 0


def _text(output: Output, start: int, end: int) -> str:
    with output.open() as file:
        return shown(os.pread(file.fileno(), end - start, start))


def _since(output: Output, since: float) -> int:
    """Return where the first line begins that was written at a time or later."""
    stamps = output.stamps()
    try:
        offset = stamps.offset_at(since)
    finally:
        stamps.close()
    try:
        with output.open() as file:
            if offset is None:
                return tail_of(output, 0)
            file.seek(max(0, offset - 1))
            return max(0, offset - 1) + len(file.readline()) if offset else 0
    except FileNotFoundError:
        return 0
