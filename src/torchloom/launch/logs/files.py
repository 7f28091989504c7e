"""Write what a rank prints, once, with the order and time of its lines; read its error file."""

import contextlib
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

from torchloom.specs.dataclass import dataclass

STREAMS = ("stdout", "stderr")
ORDER = "order"  # the file that says which lines of which stream follow which
LETTERS = {"stdout": "o", "stderr": "e"}
RECORD = 16  # bytes of an entry there: a letter, a number of bytes, a newline
LEGACY = "combined.log"  # what earlier versions wrote instead: all bytes a second time
_STAMP_EVERY = 0.1  # seconds; `since` and `until` are right to this
_LONGEST_LINE = 65536  # a partial line longer than this has its place in the order as it is


class LogFiles:
    """The log folder of one rank. A full disk costs log bytes, counted, and never the rank."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lost = 0
        self._files: dict[str, int] = {}
        self._order = _Order(directory)
        self._stamped = -math.inf

    def write(self, stream: str, data: bytes) -> None:
        """Append what a stream brought; its whole lines get their place among those of both."""
        self._order.load()
        self._stamp()
        written = self._append(f"{stream}.log", data)
        self._order.take(stream, data[:written])

    def close(self) -> None:
        """Give unfinished lines their place and let the files go."""
        self._order.close()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _stamp(self) -> None:
        passed = time.monotonic()
        if passed - self._stamped >= _STAMP_EVERY:
            self._stamped = passed
            sizes = [size_of(self.directory / f"{name}.log") for name in STREAMS]
            words = " ".join(map(str, (*sizes, self._order.size)))
            self._append("times", f"{time.time():.3f} {words}\n".encode())

    def _append(self, name: str, data: bytes) -> int:
        """Return how many bytes could be written."""
        left = data
        try:
            fd = self._open(name)
            while left:
                left = left[os.write(fd, left) :]
        except OSError:
            if name.removesuffix(".log") in STREAMS:
                self.lost += len(left)
        return len(data) - len(left)

    def _open(self, name: str) -> int:
        if name not in self._files:
            self.directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._files[name] = os.open(self.directory / name, flags, 0o600)
        return self._files[name]


class _Order:
    """Which bytes of which stream follow which, by whole lines; one entry as long as one prints.

    An entry that cannot be written, on a full disk, is made up for by the next one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = -1
        self._is_loaded = False
        self._entries: int = 0
        self._last = ("", 0)
        self._pending = dict.fromkeys(STREAMS, 0)  # bytes that have no place yet
        self.size = 0  # of both streams together, as far as they have their place

    def load(self) -> None:
        """Find out, once, what an earlier writer has left in this folder."""
        if self._is_loaded:
            return
        self._is_loaded = True
        sizes = {stream: size_of(self._directory / f"{stream}.log") for stream in STREAMS}
        found = entries(self._directory)
        self.size = size_of(self._directory / LEGACY)
        if not found and self.size:  # of an earlier version: what is there has its place
            found = [(LETTERS[stream].upper(), size) for stream, size in sizes.items() if size]
            for letter, size in found:
                self._put(letter, size, 0)
        else:
            self._entries, self._last = len(found), found[-1] if found else ("", 0)
        self.size += sum(count for letter, count in found if letter.islower())
        for stream, letter in LETTERS.items():
            placed = sum(count for one, count in found if one.lower() == letter)
            self._pending[stream] = max(0, sizes[stream] - placed)

    def take(self, stream: str, data: bytes) -> None:
        """Give the whole lines of a stream their place behind what has one."""
        unfinished = len(data) - data.rfind(b"\n") - 1
        self._pending[stream] += len(data)
        if unfinished == len(data):
            unfinished = self._pending[stream]
        self._place(stream, 0 if unfinished > _LONGEST_LINE else unfinished)

    def close(self) -> None:
        self.load()  # half a line may be there of a writer that was killed
        for stream in STREAMS:
            self._place(stream, 0)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _place(self, stream: str, unfinished: int) -> None:
        count = self._pending[stream] - unfinished
        if count <= 0:
            return
        letter, before = LETTERS[stream], self._last
        known = before[1] if before[0] == letter else 0
        if self._put(letter, known + count, 1 if known else 0):
            self._pending[stream] -= count
            self.size += count

    def _put(self, letter: str, count: int, again: int) -> bool:
        """Write an entry behind the others, or the last one again."""
        text = f"{letter} {count:>{RECORD - 3}}\n".encode()
        number = self._entries - again
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._directory / ORDER, flags, 0o600)
            if os.pwrite(self._file, text, number * RECORD) < RECORD:
                return False
        except OSError:
            return False
        self._entries, self._last = number + 1, (letter, count)
        return True


def entries(directory: Path, start: int = 0) -> list[tuple[str, int]]:
    """Return the order of a folder from an entry on: the letter of a stream, and its bytes."""
    try:
        with open(directory / ORDER, "rb") as file:
            file.seek(start * RECORD)
            data = file.read()
    except OSError:
        return []
    whole = range(0, len(data) - RECORD + 1, RECORD)
    return [(chr(data[at]), int(data[at + 1 : at + RECORD])) for at in whole]


def size_of(path: Path) -> int:
    """Return the bytes of a file; of one that is not there none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """An error file: its text, and when it was written."""

    text: str
    written: float

    @classmethod
    def read(cls, path: Path) -> "ErrorFile | None":
        with contextlib.suppress(OSError):
            return cls(path.read_text(errors="replace"), path.stat().st_mtime)
        return None


def first_error(reports: Iterable[ErrorFile | None]) -> str | None:
    """Return the text of the error that happened first, as its rank wrote it."""
    # `@record` knows whole seconds only: within one, the file that was there first
    found = [(int(_timestamp(each)), each.written, each.text) for each in reports if each]
    return min(found)[-1] if found else None


def put_aside(path: Path, attempt: int | str) -> None:
    """Keep an earlier attempt's error under its number, so that a new one is really new."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"error.{attempt}.json"))


def _timestamp(error: ErrorFile) -> float:
    """Return when the error happened, by its own word; without one, when the file was written."""
    from torchloom.specs.status import read_error  # only where a rank has failed

    report = read_error(error.text)
    with contextlib.suppress(ValueError, TypeError):
        return float(report.timestamp) if report else error.written  # type: ignore[arg-type]
    return error.written
