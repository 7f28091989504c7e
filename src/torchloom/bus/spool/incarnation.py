"""The spool of one incarnation of a rank: segments in a folder, and how far they were sent."""

import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchloom.messages.plane import VERSION, Batch, Head

_HEADER = struct.Struct("!II")  # bytes that follow, their checksum
_FACTS = struct.Struct("!BQII")  # kind, number, generation, points
_NAME_DIGITS = 20
SUFFIX = ".log"
_MOST_BYTES = 256 << 10  # of the records of a batch, unless a single one is longer
_MOST_RECORDS = 1024
_LARGEST = (1 << 32) - 1  # number that an entry has room for beside its own
_WORN = 64 << 10  # bytes of stored entries that are worth a new file


class EntryKind(IntEnum):
    """What an entry holds."""

    RECORD = 0
    METRIC = 1  # a record that may be dropped when there is no room
    GAP = 2  # records were here, up to this number; so many points were in them


class SpoolEntry(NamedTuple):
    """A record with its number; of a gap, the number of the last record that it replaces."""

    kind: EntryKind
    number: int
    generation: int
    points: int
    record: bytes


class SpoolSegment:
    """A file of entries whose numbers begin at `first`, open for more at its end."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.last = first - 1
        self.size = 0
        self.metrics = 0  # entries that may be dropped
        self._fd = -1

    @classmethod
    def create(cls, folder: Path, first: int) -> "SpoolSegment":
        """Make an empty one, named for the number of its first record."""
        path = folder / f"{first:0{_NAME_DIGITS}}{SUFFIX}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return cls(path, first)

    @classmethod
    def load(cls, path: Path) -> "SpoolSegment":
        """Load one that an earlier process left; an incomplete entry at its end is cut."""
        segment = cls(path, int(path.name.removesuffix(SUFFIX)))
        for end, entry in scan(path.read_bytes()):
            segment._note(entry, end)
        os.truncate(path, segment.size)
        return segment

    def append(self, entry: SpoolEntry) -> int:
        """Append an entry, completely or not at all, and return its length."""
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

    def read(self, offset: int = 0) -> Iterator[tuple[int, SpoolEntry]]:
        """Yield each entry from an offset on, with the offset of the one that follows it."""
        if offset >= self.size:
            return
        with open(self.path, "rb") as file:
            file.seek(offset)
            data = file.read(self.size - offset)
        for end, entry in scan(data):
            yield offset + end, entry

    def thin(self, stored: int) -> None:
        """Drop metrics, and what is stored, replacing the file in one step."""
        partial = self.path.with_suffix(".partial")
        kept, first, last = _thinned(self, stored), self.first, self.last
        data = b"".join(pack(entry) for entry in kept)
        with open(partial, "wb", opener=_private) as file:
            file.write(data)
        self.close()
        partial.replace(self.path)
        self.first, self.last, self.size, self.metrics = first, last, len(data), 0

    def remove(self) -> None:
        """Delete the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; it may be read and written again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _note(self, entry: SpoolEntry, size: int) -> None:
        self.last = entry.number
        self.size = size
        self.metrics += entry.kind is EntryKind.METRIC


def pack(entry: SpoolEntry) -> bytes:
    """Return an entry as it is in a file."""
    facts = _FACTS.pack(entry.kind, entry.number, entry.generation, entry.points)
    body = facts + entry.record
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def scan(data: bytes) -> Iterator[tuple[int, SpoolEntry]]:
    """Yield each complete entry and where it ends, up to the first that is not complete."""
    place = 0
    while place + _HEADER.size + _FACTS.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, place)
        body = data[place + _HEADER.size : place + _HEADER.size + length]
        if len(body) != length or length < _FACTS.size or zlib.crc32(body) != checksum:
            return
        place += _HEADER.size + length
        kind, number, generation, points = _FACTS.unpack_from(body)
        yield place, SpoolEntry(EntryKind(kind), number, generation, points, body[_FACTS.size :])


def _thinned(segment: SpoolSegment, stored: int) -> list[SpoolEntry]:
    kept: list[SpoolEntry] = []
    for _, entry in segment.read():
        if entry.number <= stored:
            continue
        if entry.kind is EntryKind.RECORD:
            kept.append(entry)
            continue
        points = entry.points
        if kept and kept[-1].kind is EntryKind.GAP:
            points += kept.pop().points
        kept.append(SpoolEntry(EntryKind.GAP, entry.number, entry.generation, points, b""))
    return kept


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class RecordOwner(msgspec.Struct, frozen=True, array_like=True):
    """Which incarnation the records are of; while its process runs there can be more."""

    job: str
    rank: int
    incarnation: str
    pid: int
    started: int

    @property
    def name(self) -> str:
        """Return a file name that no other incarnation has, whatever its job is called."""
        text = f"{self.job}\0{self.rank}\0{self.incarnation}"
        return blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


class IncarnationRecords:
    """The records of one incarnation, numbered from 1, oldest first."""

    def __init__(
        self, folder: Path, who: RecordOwner, segments: list[SpoolSegment], full: int
    ) -> None:
        self.who = who
        self.stored = segments[0].first - 1
        self._folder = folder
        self._segments = segments
        self._full = full  # bytes of a segment that takes no more
        self._sent = self.stored
        self._place = (segments[0].first, 0)  # where reading continues: a segment, an offset

    @classmethod
    def create(cls, root: Path, who: RecordOwner, full: int) -> "IncarnationRecords":
        """Create an incarnation's folder, complete in one step."""
        partial, folder = root / f".new-{who.name}", root / who.name
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        (partial / "who").write_bytes(msgspec.msgpack.encode(who))
        SpoolSegment.create(partial, 1)
        partial.rename(folder)
        return cls(folder, who, [SpoolSegment.load(path) for path in _files(folder)], full)

    @classmethod
    def load(cls, folder: Path, full: int) -> "IncarnationRecords":
        """Load a folder that an earlier spool left; raises ValueError for any other folder."""
        try:
            who = msgspec.msgpack.decode((folder / "who").read_bytes(), type=RecordOwner)
        except (OSError, msgspec.MsgspecError) as error:
            raise ValueError(f"{folder} is not the folder of an incarnation: {error}") from error
        segments = [SpoolSegment.load(path) for path in _files(folder)]
        if not segments or who.name != folder.name:
            raise ValueError(f"{folder} is not the folder of an incarnation")
        return cls(folder, who, segments, full)

    @property
    def last(self) -> int:
        """Return the number of the newest record."""
        return self._segments[-1].last

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def droppable(self) -> int:
        """Return how many bytes are in segments from which metrics can be dropped."""
        return sum(segment.size for segment in self._segments if segment.metrics)

    @property
    def unsent(self) -> bool:
        return self.last > self._sent

    def append(self, generation: int, points: int | None, record: bytes) -> int:
        """Keep a record, and return its size on disk; without points it is never dropped."""
        if self._segments[-1].size >= self._full:
            self._roll()
        kind = EntryKind.RECORD if points is None else EntryKind.METRIC
        entry = SpoolEntry(kind, self.last + 1, _fitting(generation), _fitting(points or 0), record)
        return self._segments[-1].append(entry)

    def next_batch(self, agent: str) -> Batch | None:
        """Return the next records that were not sent, as many as fit into a batch."""
        parcel = _Parcel(self._sent + 1, self._place)
        for after, entry in self._entries():
            if not parcel.take(after, entry):
                break
        if not parcel.records:
            return None
        follows = self._sent if self._sent > self.stored else 0
        self._sent, self._place = parcel.expected - 1, parcel.place
        head = Head(VERSION, self.who.job, parcel.generation, self.who.rank, self.who.incarnation)
        first = parcel.expected - len(parcel.records)
        return Batch(head, agent, first, tuple(parcel.records), parcel.dropped, follows)

    def forget(self, upto: int) -> None:
        """Drop what is in the database; the number of the last record is never lost."""
        self.stored = max(self.stored, min(upto, self.last))
        self._sent = max(self._sent, self.stored)
        if self.stored == self.last and self._segments[-1].size >= min(_WORN, self._full):
            self._roll()
        while len(self._segments) > 1 and self._segments[0].last <= self.stored:
            self._segments.pop(0).remove()

    def again(self) -> None:
        """Send everything that is not known to be stored once more."""
        self._sent = self.stored
        self._place = (self._segments[0].first, 0)

    def thin(self) -> None:
        """Let go of the oldest metrics."""
        if not any(segment.metrics for segment in self._segments[:-1]):
            self._roll()
        next(segment for segment in self._segments if segment.metrics).thin(self.stored)
        self._place = (self._segments[0].first, 0)

    def remove(self) -> None:
        """Delete all records of this incarnation."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the files."""
        for segment in self._segments:
            segment.close()

    def _roll(self) -> None:
        self._segments[-1].close()
        self._segments.append(SpoolSegment.create(self._folder, self.last + 1))

    def _entries(self) -> Iterator[tuple[tuple[int, int], SpoolEntry]]:
        """Yield each entry from where reading continues, with the place after it."""
        first, offset = self._place
        for segment in self._segments:
            if segment.first >= first:
                start = offset if segment.first == first else 0
                for end, entry in segment.read(start):
                    yield (segment.first, end), entry


class _Parcel:
    """Records that go together: their numbers have no gap, whatever is missing lies before them."""

    def __init__(self, expected: int, place: tuple[int, int]) -> None:
        self.expected = expected
        self.place = place
        self.records: list[bytes] = []
        self.dropped = 0
        self.generation = 0
        self._size = 0

    def take(self, after: tuple[int, int], entry: SpoolEntry) -> bool:
        """Add an entry; false when it must wait for the next parcel."""
        is_gap = entry.kind is EntryKind.GAP
        if entry.number >= self.expected:
            if self.records and (is_gap or entry.number > self.expected or self._is_full(entry)):
                return False
            self.dropped += entry.points if is_gap else entry.number - self.expected
            self.expected = entry.number + 1
            if not is_gap:
                self.records.append(entry.record)
                self.generation = entry.generation
                self._size += len(entry.record)
        self.place = after
        return True

    def _is_full(self, entry: SpoolEntry) -> bool:
        return self._size + len(entry.record) > _MOST_BYTES or len(self.records) >= _MOST_RECORDS


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))


def _fitting(number: int) -> int:
    return min(max(0, number), _LARGEST)
