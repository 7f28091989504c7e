"""Read the logs of ranks: all of it or a span of time, once or as it grows, one rank or many."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from torchloom.specs.dataclass import dataclass

STREAMS = ("stdout", "stderr")
_COLUMN = {"stdout": 1, "stderr": 2, "combined": 3}
_SOON, _LATE = 0.02, 0.25  # seconds between looks while lines come, and when nothing does
_CHUNK = 1 << 20

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


def lines(
    tails: Sequence[Tail],
    prefixes: Sequence[str] | None = None,
    regex: str | None = None,
    wait: Wait | None = None,
) -> Iterator[str]:
    """Yield whole lines with their newline, each behind its tail's prefix."""
    wanted = re.compile(regex) if regex else None
    partial: dict[int, bytes] = {}
    for which, data in chunks(tails, wait):
        *whole, partial[which] = (partial.get(which, b"") + data).split(b"\n")
        for raw in whole:
            text = raw.decode(errors="replace")
            if wanted is None or wanted.search(text):
                yield f"{prefixes[which] if prefixes else ''}{text}\n"
    for which, raw in sorted(partial.items()):
        text = raw.decode(errors="replace")
        if text and (wanted is None or wanted.search(text)):
            yield f"{prefixes[which] if prefixes else ''}{text}"
