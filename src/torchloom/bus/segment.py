"""One file of a spool: entries one after the other, each with its length and checksum before it.

An entry that was being written when its writer was killed fails its checksum, and ends the file.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("!II")  # bytes that follow, their checksum
_FACTS = struct.Struct("!BQII")  # kind, number, generation, points
_NAME_DIGITS = 20
SUFFIX = ".log"


class Kind(IntEnum):
    """What an entry holds."""

    RECORD = 0
    METRIC = 1  # a record that may be let go when there is no room
    GAP = 2  # records were here, up to this number; so many points were in them


class Entry(NamedTuple):
    """A record with its number; of a gap, the number of the last record that it replaces."""

    kind: Kind
    number: int
    generation: int
    points: int
    record: bytes


class Segment:
    """A file of entries whose numbers begin at `first`, open for more at its end."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.last = first - 1
        self.size = 0
        self.metrics = 0  # entries that may be let go
        self._fd = -1

    @classmethod
    def create(cls, folder: Path, first: int) -> "Segment":
        """Make an empty one; its name alone says how far the numbers went before it."""
        path = folder / f"{first:0{_NAME_DIGITS}}{SUFFIX}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return cls(path, first)

    @classmethod
    def load(cls, path: Path) -> "Segment":
        """Take up one that an earlier life left; what was torn off at its end is cut."""
        segment = cls(path, int(path.name.removesuffix(SUFFIX)))
        for end, entry in scan(path.read_bytes()):
            segment._note(entry, end)
        os.truncate(path, segment.size)
        return segment

    def append(self, entry: Entry) -> int:
        """Write an entry at the end, whole or not at all, and return its length."""
        data = pack(entry)
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError("the disk is full")
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self._note(entry, self.size + len(data))
        return len(data)

    def read(self, offset: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield each entry from an offset on, with the offset of the one that follows it."""
        if offset >= self.size:
            return
        with open(self.path, "rb") as file:
            file.seek(offset)
            data = file.read(self.size - offset)
        for end, entry in scan(data):
            yield offset + end, entry

    def thin(self, stored: int) -> None:
        """Let go of what may be let go, and of what is stored, replacing the file in one step."""
        partial = self.path.with_suffix(".partial")
        kept, first, last = _thinned(self, stored), self.first, self.last
        data = b"".join(pack(entry) for entry in kept)
        with open(partial, "wb", opener=_private) as file:
            file.write(data)
        self.close()
        partial.replace(self.path)
        self.first, self.last, self.size, self.metrics = first, last, len(data), 0

    def remove(self) -> None:
        """Forget the file and what is in it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; it may be read and written again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _note(self, entry: Entry, size: int) -> None:
        self.last = entry.number
        self.size = size
        self.metrics += entry.kind is Kind.METRIC


def pack(entry: Entry) -> bytes:
    """Return an entry as it lies in a file."""
    facts = _FACTS.pack(entry.kind, entry.number, entry.generation, entry.points)
    body = facts + entry.record
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def scan(data: bytes) -> Iterator[tuple[int, Entry]]:
    """Yield each whole entry and where it ends; the first that is not whole ends it all."""
    place = 0
    while place + _HEADER.size + _FACTS.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, place)
        body = data[place + _HEADER.size : place + _HEADER.size + length]
        if len(body) != length or length < _FACTS.size or zlib.crc32(body) != checksum:
            return
        place += _HEADER.size + length
        kind, number, generation, points = _FACTS.unpack_from(body)
        yield place, Entry(Kind(kind), number, generation, points, body[_FACTS.size :])


def _thinned(segment: Segment, stored: int) -> list[Entry]:
    kept: list[Entry] = []
    for _, entry in segment.read():
        if entry.number <= stored:
            continue
        if entry.kind is Kind.RECORD:
            kept.append(entry)
            continue
        points = entry.points
        if kept and kept[-1].kind is Kind.GAP:
            points += kept.pop().points
        kept.append(Entry(Kind.GAP, entry.number, entry.generation, points, b""))
    return kept


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
