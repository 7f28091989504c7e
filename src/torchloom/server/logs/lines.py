"""The logs of a job's ranks by line: its position, the time it was written, and its level."""

import contextlib
import heapq
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from torchloom import accounts
from torchloom.errors import UserError
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.server.logs.matcher import LONGEST, shown
from torchloom.unix import open_file
from torchloom.weaver.views import when

COLUMN = {"stdout": 1, "stderr": 2}  # where the size of each output stands in a note
_LINE = 128  # bytes; a note is shorter
_BLOCK = 1 << 16
STREAMS = ("stdout", "stderr")
LEVELS = ("debug", "info", "warning", "error", "critical")  # in the order of their gravity
_NONSENSE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError)
_UNMARKED = {"stdout": "info", "stderr": "error"}
_WORD = re.compile(r"\b(DEBUG|TRACE|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b")
_SHORT = re.compile(r"(?:^|\[)([DIWEF])\d{4}[ :]")  # glog's and c10d's
_ALIASES = {"TRACE": "debug", "NOTICE": "info", "WARN": "warning", "FATAL": "critical"}
_LETTERS = {"D": "debug", "I": "info", "W": "warning", "E": "error", "F": "critical"}
_MARK_WITHIN = 120  # letters from the beginning of a line


class Stamps:
    """The notes of one rank's folder as they are now: the size of an output, ten times a second.

    Times and sizes both grow, so they are searched by bisection.
    """

    def __init__(self, folder: Path, stream: str) -> None:
        self._column = COLUMN[stream]
        self._file = -1
        self._size = 0
        self._known: tuple[list[int], list[float]] = ([], [])
        self._covers = range(0)  # offsets whose notes are known
        try:
            with open_file(folder / "times") as file:
                self._file = os.dup(file.fileno())
            self._size = os.fstat(self._file).st_size
        except OSError:
            pass

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def time_at(self, offset: int) -> float:
        """Return when the byte at an offset was written; zero when that is not known."""
        if offset not in self._covers:
            self._known = self._load(lambda size, _: size <= offset)
        sizes, times = self._known
        found = bisect_right(sizes, offset)
        return times[max(0, found - 1)] if times else 0.0

    def offset_at(self, time: float) -> int | None:
        """Return how large the output was at a time; nothing when that is still to come."""
        sizes, times = self._load(lambda _, noted: noted < time)
        found = next((i for i, noted in enumerate(times) if noted >= time), None)
        return None if found is None else sizes[found]

    def _load(self, is_before: Callable[[int, float], bool]) -> tuple[list[int], list[float]]:
        """Return the notes around the last one for which something holds."""
        low, high = 0, self._size
        while high - low > _BLOCK // 2:
            middle = (low + high) // 2
            note = self._first(middle)
            if note is not None and is_before(*note):
                low = middle
            else:
                high = middle
        return self._read(max(0, low - _LINE))

    def _first(self, start: int) -> tuple[int, float] | None:
        """Return the first whole note after a place."""
        for line in os.pread(self._file, 2 * _LINE, start).split(b"\n")[1:-1]:
            if (note := self._note(line)) is not None:
                return note
        return None

    def _read(self, start: int) -> tuple[list[int], list[float]]:
        data = os.pread(self._file, _BLOCK, start) if self._file >= 0 else b""
        lines = data.split(b"\n")[1 if start else 0 : -1]
        notes = [note for note in map(self._note, lines) if note is not None]
        is_end = start + len(data) >= self._size or not notes
        first = notes[0][0] if start and notes else 0
        self._covers = range(first, sys.maxsize if is_end else notes[-1][0])
        return [size for size, _ in notes], [time for _, time in notes]

    def _note(self, line: bytes) -> tuple[int, float] | None:
        fields = line.split()
        if len(fields) != 4:  # torn by a crash
            return None
        try:
            return int(fields[self._column]), float(fields[0])
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two outputs of a rank."""

    key: str
    folder: Path
    stream: str
    role: str
    rank: int
    account: str = ""  # with whose rights it is read; none: the plane's own user

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stream}.log"

    def open(self) -> IO[bytes]:
        """Open it with the rights of its account; FileNotFoundError where there is none."""
        return accounts.within(self.account, _opened, self.path)

    def stamps(self) -> Stamps:
        """Return when its lines were written."""
        return accounts.within(self.account, Stamps, self.folder, self.stream)


class Files(NamedTuple):
    """Where the files of a job's run are: in a state folder, or in an account's."""

    home: Path
    account: str = ""


def _opened(path: Path) -> IO[bytes]:
    try:
        return open_file(path)
    except OSError as error:  # a link or a FIFO of an account is as good as nothing
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line, or a part of a very long one; it begins and ends at these bytes of its file."""

    output: Output
    start: int
    end: int
    time: float
    text: str

    @property
    def level(self) -> str:
        return level_of(self.text, self.output.stream)

    def shape(self) -> dict[str, Any]:
        return {
            "time": when(self.time) if self.time else None,
            "rank": self.output.rank,
            "role": self.output.role,
            "stream": self.output.stream,
            "level": self.level,
            "message": self.text,
        }


def level_of(text: str, stream: str) -> str:
    """Return the level that a line names; without one, `info` on stdout and `error` on stderr.

    So a traceback, which names no level, is found among the errors.
    """
    beginning = text[:_MARK_WITHIN]
    if short := _SHORT.search(beginning):
        return _LETTERS[short[1]]
    if word := _WORD.search(beginning):
        return _ALIASES.get(word[1], word[1].lower())
    return _UNMARKED[stream]


def record_of(files: Files, job: str) -> RunRecord | None:
    """Return the record of a job that was launched by us; others have no logs here."""
    if not job or "/" in job or job.startswith("."):
        return None
    with contextlib.suppress(*_NONSENSE):
        if not files.account:
            return RunFolder(files.home / "runs" / job).record()
        record = accounts.within(files.account, lambda: RunFolder.named(job).record())
        record.truth()
        return record if _is_sound(record) else None
    return None


def _is_sound(record: RunRecord) -> bool:
    """Return whether a record that an account wrote has texts and numbers where they belong."""
    return isinstance(record.log_dir, str) and all(
        type(rank.rank) is int and isinstance(rank.logs, str) and isinstance(rank.role, str)
        for rank in record.ranks
    )


def outputs_of(
    record: RunRecord | None, ranks: Collection[int] | None = None, account: str = ""
) -> list[Output]:
    """Return the outputs of a job, or of some of its ranks."""
    if record is None:
        return []
    return [
        Output(
            f"{rank.logs}:{stream}", record.log_path(rank), stream, rank.role, rank.rank, account
        )
        for rank in record.ranks
        if ranks is None or rank.rank in ranks
        for stream in STREAMS
    ]


def lines_of(output: Output, start: int, is_final: bool) -> Iterator[OutputLine]:
    """Yield the lines of an output from a byte on; one without an end only when none will come."""
    stamps = output.stamps()
    try:
        with output.open() as file:
            file.seek(start)
            for begins, raw in _whole(iter(lambda: file.read(_BLOCK), b""), start, is_final):
                time = stamps.time_at(begins)
                yield OutputLine(output, begins, begins + len(raw), time, shown(raw))
    except FileNotFoundError:
        return  # it has printed nothing yet
    finally:
        stamps.close()


def merged(
    outputs: Sequence[Output], starts: Mapping[str, int], is_final: bool = False
) -> Iterator[OutputLine]:
    """Yield the lines of several outputs by time, each output's in its own order."""
    ways = [lines_of(output, starts.get(output.key, 0), is_final) for output in outputs]
    return heapq.merge(*ways, key=lambda line: line.time)


def ends_of(outputs: Sequence[Output]) -> dict[str, int]:
    """Return where each output's last whole line ends now."""
    return {output.key: tail_of(output, 0) for output in outputs}


def tail_of(output: Output, count: int) -> int:
    """Return where the last `count` whole lines of an output begin, looking from its end."""
    try:
        with output.open() as file:
            end = file.seek(0, os.SEEK_END)
            data, start = b"", end
            while start > 0 and data.count(b"\n") <= count and end - start < LONGEST * (count + 1):
                start = max(0, start - _BLOCK)
                file.seek(start)
                data = file.read(min(_BLOCK, end - start)) + data
    except FileNotFoundError:
        return 0
    place = len(data)
    for _ in range(count + 1):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return start
    return start + place + 1


def _whole(blocks: Iterator[bytes], start: int, is_final: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (place, bytes) of every whole line, and of the parts of very long ones."""
    rest = b""
    for block in blocks:
        for raw in _split(rest + block):
            if not raw.endswith(b"\n") and len(raw) < LONGEST:
                rest = raw
                break
            yield start, raw
            start += len(raw)
        else:
            rest = b""
    if rest and is_final:
        yield start, rest


def _split(data: bytes) -> Iterator[bytes]:
    """Yield lines with their newline, none longer than the longest."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at, at + LONGEST) + 1 or min(len(data), at + LONGEST)
        yield data[at:end]
        at = end
