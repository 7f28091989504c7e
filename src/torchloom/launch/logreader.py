"""Read the logs of ranks: all of it or a span of time, once or as it grows, one rank or many."""

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from torchloom.specs.dataclass import dataclass

STREAMS = ("stdout", "stderr")
_COLUMN = {"stdout": 1, "stderr": 2, "combined": 3}
_SOON, _LATE = 0.02, 0.25  # seconds between looks while lines come, and when nothing does
_CHUNK = 1 << 20

STATES = 1.0  # seconds between two states of a progress bar that stands beside other lines

Wait = Callable[[float], bool]  # sleep at most so long; true when nothing more will be written


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of a log by time; an open end is no limit."""

    since: datetime | None = None
    until: datetime | None = None


class Tail:
    """The new bytes of one growing file, between two instants."""

    def __init__(self, directory: Path, stream: str = "combined", span: Span | None = None) -> None:
        self.path = directory / f"{stream}.log"
        self._times = directory / "times"
        self._column = _COLUMN[stream]
        self._span = span or Span()
        self._offset: int | None = None

    def read(self) -> bytes:
        """Return what was written since the last call; a file that is not there yet is empty."""
        try:
            with open(self.path, "rb") as file:
                if self._offset is None:
                    self._offset = self._first_line(file)
                if self._offset is None:
                    return b""
                file.seek(self._offset)
                data = file.read(self._limit(self._offset))
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data

    def _first_line(self, file: BinaryIO) -> int | None:
        """Return where to begin; nothing while that is still to be written."""
        start = self._start()
        return None if start is None else _line_start(file, start)

    def _start(self) -> int | None:
        """Return where `since` is in the file; nothing when it is still to come."""
        if self._span.since is None:
            return 0
        since = self._span.since.timestamp()
        return next((offset for time, offset in self._stamps() if time >= since), None)

    def _limit(self, start: int) -> int:
        if self._span.until is None:
            return _CHUNK
        until = self._span.until.timestamp()
        end = next((offset for time, offset in self._stamps() if time > until), start + _CHUNK)
        return max(0, min(_CHUNK, end - start))

    def _stamps(self) -> Iterator[tuple[float, int]]:
        """Yield (instant, size of the file then), as the writer noted them."""
        for line in self._times.read_text().splitlines():
            fields = line.split()
            if len(fields) == 4:  # a line torn by a crash is none
                yield float(fields[0]), int(fields[self._column])


def _line_start(file: BinaryIO, offset: int) -> int | None:
    """Return the start of the first line at or after an offset, once the one before has ended."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    rest = file.readline()
    return offset - 1 + len(rest) if rest.endswith(b"\n") else None


def ending(wait: Wait, until: datetime | None) -> Wait:
    """Return a wait that also says over once `until` has passed: nothing later is shown."""
    return lambda pause: wait(pause) or (until is not None and time.time() > until.timestamp())


def chunks(tails: Sequence[Tail], wait: Wait | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (which tail, bytes): what there is and, with `wait`, what comes until it says over.

    Whoever waits may add tails meanwhile: they are read from then on.
    """
    over, pause = wait is None, _SOON
    while True:
        idle = True
        for which, tail in enumerate(tails):
            if data := tail.read():
                idle = False
                yield which, data
        if not idle:
            pause = _SOON
        elif over or wait is None:
            return
        else:
            over = wait(pause)
            pause = min(pause * 2, _LATE)


class WholeLines:
    """The whole lines of one output, also of one that rewrites its line, as progress bars do.

    Such a line is shown as it is in the end, and as it is on the way once in so many seconds: never
    a half of it, nor a carriage return, which would tear what another rank has on the same line of
    a terminal. Endless seconds show the end alone; without a number all is left as it was written.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._rest = b""
        self._due = math.inf if seconds == math.inf else -math.inf  # of the next state
        self._is_shown = False  # all of the rest but its last carriage return

    def take(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now, without their newline."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._seconds is None:
            return whole
        if whole and self._is_shown and not whole[0].strip(b"\r"):
            whole = whole[1:]
        self._is_shown = self._is_shown and not whole
        return [last_state(line) for line in whole] + self._states(self._seconds)

    def end(self) -> list[bytes]:
        """Return what is left when nothing follows."""
        rest, self._rest = self._rest, b""
        if self._seconds is None:
            return [rest] if rest else []
        return [left] if (left := last_state(rest)).strip() else []

    def _states(self, seconds: float) -> list[bytes]:
        """Return the newest state that was written whole, if it is time for one; forget older."""
        before, mark, last = self._rest.rpartition(b"\r")
        state = last_state(before)
        if not mark or not state.strip():
            return []
        if (now := self._clock()) < self._due:
            self._rest = state + mark + last
            return []
        self._due, self._rest, self._is_shown = now + seconds, mark + last, True
        return [state]


_CURSOR = re.compile(rb"\x1b\[[\d;?]*[A-HJKSTfsu]")  # what moves it or erases


def last_state(line: bytes) -> bytes:
    """Return a line as a terminal leaves it: what follows its last carriage return."""
    state = line.rstrip(b"\r").rpartition(b"\r")[2]
    return _CURSOR.sub(b"", state) if b"\x1b" in state else state


def lines(
    tails: Sequence[Tail],
    prefixes: Sequence[str] | None = None,
    regex: str | None = None,
    wait: Wait | None = None,
    seconds: float | None = None,
) -> Iterator[str]:
    """Yield whole lines with their newline, each behind its tail's prefix.

    With `seconds`, lines that are rewritten are shown as `WholeLines` has them.
    """
    wanted = re.compile(regex) if regex else None
    makers: dict[int, WholeLines] = defaultdict(lambda: WholeLines(seconds))

    def shown(which: int, raw: bytes, end: str) -> Iterator[str]:
        text = raw.decode(errors="replace")
        if wanted is None or wanted.search(text):
            yield f"{prefixes[which] if prefixes else ''}{text}{end}"

    for which, data in chunks(tails, wait):
        for raw in makers[which].take(data):
            yield from shown(which, raw, "\n")
    for which, maker in sorted(makers.items()):
        for raw in maker.end():
            yield from shown(which, raw, "")
