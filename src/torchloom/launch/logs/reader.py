"""Read the logs of ranks: all of it or a span of time, once or as it grows, one rank or many."""

import io
import math
import os
import re
import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from torchloom.launch.logs.files import LEGACY, LETTERS, ORDER, entries, size_of
from torchloom.specs.dataclass import dataclass
from torchloom.unix import open_file

_FILES = {letter: f"{stream}.log" for stream, letter in LETTERS.items()}
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
        plain = directory / f"{stream}.log"
        self._file = Combined(directory) if stream == "combined" else plain
        self._times = directory / "times"
        self._column = _COLUMN[stream]
        self._span = span or Span()
        self._offset: int | None = None

    def read(self) -> bytes:
        """Return what was written since the last call; a file that is not there yet is empty."""
        try:
            with _opened(self._file) as file:
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
        return self._behind_last(lambda time: time < since)

    def _limit(self, start: int) -> int:
        if self._span.until is None:
            return _CHUNK
        until = self._span.until.timestamp()
        end = self._behind_last(lambda time: time <= until)
        return _CHUNK if end is None else max(0, min(_CHUNK, end - start))

    def _behind_last(self, is_before: Callable[[float], bool]) -> int | None:
        """Return the size at the first stamp behind all earlier ones; nothing while none is there.

        Where the clock was set back, later lines have earlier stamps: these must not be left out.
        """
        found = None
        for at, offset in self._stamps():
            if is_before(at):
                found = None
            elif found is None:
                found = offset
        return found

    def _stamps(self) -> Iterator[tuple[float, int]]:
        """Yield (instant, size of the file then), as the writer noted them."""
        for line in self._times.read_text().splitlines():
            fields = line.split()
            if len(fields) == 4:  # a line torn by a crash is none
                yield float(fields[0]), int(fields[self._column])


class Combined:
    """Both streams of a folder as one file, in the order in which their lines came.

    It is not stored: `order` says how many bytes of which stream follow which.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.starts = array("Q")  # of each entry of the order, in the whole
        self.places = array("Q")  # and in the file of its stream
        self.letters = bytearray()
        self._upto = dict.fromkeys(LETTERS.values(), 0)  # bytes of each stream with a place
        self.size = -1

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return it as it is now, for reading; FileNotFoundError when there is nothing yet."""
        old = self._directory / LEGACY
        if not (self._directory / ORDER).exists():
            return cast(BinaryIO, open_file(old))  # of an earlier version, which wrote it
        if self.size < 0:
            self.size = size_of(old)
        self._refresh()
        return cast(BinaryIO, io.BufferedReader(_Pieces(self, self._directory)))

    def _refresh(self) -> None:
        """Take in the entries that are new, and the last one again, which may have grown."""
        if self.letters:
            self._upto[chr(self.letters.pop()).lower()] = self.places.pop()
            self.size = self.starts.pop()
        for letter, count in entries(self._directory, len(self.letters)):
            self.starts.append(self.size)
            self.places.append(self._upto[letter.lower()])
            self.letters.append(ord(letter))
            self._upto[letter.lower()] += count
            self.size += count if letter.islower() else 0


class _Pieces(io.RawIOBase):
    """The bytes of a `Combined`, each from the file that has it."""

    def __init__(self, whole: Combined, directory: Path) -> None:
        self._whole = whole
        self._directory = directory
        self._at = 0
        self._files: dict[str, int] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._whole.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        whole, at = self._whole, self._at
        if at >= whole.size:
            return 0
        number = bisect_right(whole.starts, at) - 1
        end = whole.starts[number + 1] if number + 1 < len(whole.starts) else whole.size
        name, place = LEGACY, at
        if number >= 0:
            name = _FILES[chr(whole.letters[number])]
            place = whole.places[number] + at - whole.starts[number]
        data = os.pread(self._open(name), min(len(buffer), end - at), place)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
        super().close()

    def _open(self, name: str) -> int:
        if name not in self._files:
            with open_file(self._directory / name) as file:
                self._files[name] = os.dup(file.fileno())
        return self._files[name]


def _opened(file: "Combined | Path") -> BinaryIO:
    return file.open() if isinstance(file, Combined) else cast(BinaryIO, open_file(file))


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

    The caller may add tails meanwhile: they are read from then on.
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
