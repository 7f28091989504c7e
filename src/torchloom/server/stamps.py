"""When a line of a log was written: found in the notes beside it without reading all of them."""

import os
import sys
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from torchloom.unix import open_file

COLUMN = {"stdout": 1, "stderr": 2}  # where the size of each output stands in a note
_LINE = 128  # bytes; a note is shorter
_BLOCK = 1 << 16


class Stamps:
    """The notes of one rank's folder as they are now: the size of an output, ten times a second.

    Both their times and their sizes grow, so what is looked for is halved into.
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
        """Return when the byte at an offset was written; zero when nobody knows."""
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
