"""An agent's records on disk until they are in the database: numbered, and limited in size.

A record that was taken survives the agent (not a power cut, which its ranks do not survive either).
Numbers are given per incarnation of a rank, grow by one, and continue after a restart. When the
room is used up the oldest metrics are dropped, never other records; the next batch counts them.
"""

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from torchloom.bus.spool.incarnation import IncarnationRecords, RecordOwner
from torchloom.errors import Failure
from torchloom.messages.plane import Batch, Head

LIMIT = 256 << 20  # bytes on the disk; what is never dropped may take twice as much
_SEGMENT = 1 << 20
_FEWEST_SEGMENTS = 8  # that a full spool has, so that room is made in small pieces

Key = tuple[str, int, str]


class SpoolFull(Failure):
    """There is no room for a record that must not be lost: its sender must keep it."""

    code = "spool_full"


class SpoolTaken(Failure):
    """Another agent writes to this spool."""

    code = "spool_taken"


class Spool:
    """The records of all incarnations of a node, for one thread of one process."""

    def __init__(self, folder: Path, agent: str, limit: int = LIMIT) -> None:
        self.damaged = 0  # folders that cannot be read
        self._folder = folder
        self._agent = agent
        self._limit = limit
        self._segment = min(_SEGMENT, limit // _FEWEST_SEGMENTS)
        self._lock = _locked(folder)
        self._incarnations: dict[Key, IncarnationRecords] = {}
        self._under_way: dict[Key, deque[int]] = {}  # the last number of each batch sent
        self._load()
        self._size = sum(one.size for one in self._incarnations.values())

    @property
    def size(self) -> int:
        """Return how many bytes are on the disk."""
        return self._size

    @property
    def under_way(self) -> int:
        """Return how many batches were sent and not answered."""
        return sum(len(sent) for sent in self._under_way.values())

    @property
    def pending(self) -> int:
        """Return how many records are not known to be stored."""
        return sum(one.last - one.stored for one in self._incarnations.values())

    def open(self, head: Head, pid: int, started: int) -> int:
        """Prepare for an incarnation's records; return the number of the last one there is."""
        if _key(head) not in self._incarnations:
            who = RecordOwner(head.job, head.rank, head.incarnation, pid, started)
            try:
                self._incarnations[_key(head)] = IncarnationRecords.create(
                    self._folder, who, self._segment
                )
            except OSError as error:
                raise SpoolFull(f"cannot write to {self._folder}: {error}") from error
        return self._incarnations[_key(head)].last

    def last(self, head: Head) -> int:
        """Return the number of an incarnation's newest record; 0 without any."""
        one = self._incarnations.get(_key(head))
        return 0 if one is None else one.last

    def append(self, head: Head, record: bytes, points: int | None = None) -> int:
        """Keep a record and return its number; metrics are given with their number of points.

        Raises SpoolFull, and has kept nothing then.
        """
        one = self._incarnations[_key(head)]
        self._make_room(len(record))
        try:
            self._size += one.append(head.generation, points, record)
        except OSError as error:
            raise SpoolFull(f"cannot write to {self._folder}: {error}") from error
        return one.last

    def batches(self, window: int) -> Iterator[Batch]:
        """Yield what is to be sent now, up to `window` unanswered batches, in turns."""
        waiting = deque(key for key, one in self._incarnations.items() if one.unsent)
        while waiting and self.under_way < window:
            key = waiting.popleft()
            batch = self._incarnations[key].next_batch(self._agent)
            if batch is not None:
                last = batch.first + len(batch.records) - 1
                self._under_way.setdefault(key, deque()).append(last)
                waiting.append(key)
                yield batch

    def stored(self, head: Head, upto: int) -> None:
        """Drop an incarnation's records up to this number: they are in the database."""
        one = self._incarnations.get(_key(head))
        if one is None:
            return
        sent = self._under_way.get(_key(head), deque())
        while sent and sent[0] <= upto:
            sent.popleft()
        before = one.size
        one.forget(upto)
        self._size += one.size - before

    def again(self) -> None:
        """Send all that is not known to be stored again: what was under way may be lost."""
        self._under_way.clear()
        for one in self._incarnations.values():
            one.again()

    def incarnations(self) -> list[RecordOwner]:
        """Return the incarnations that have records, or could still send some."""
        return [one.who for one in self._incarnations.values()]

    def remove(self, who: RecordOwner) -> bool:
        """Remove an incarnation that has ended, if all of it is stored; return whether it is."""
        key = (who.job, who.rank, who.incarnation)
        one = self._incarnations.get(key)
        if one is None or one.stored < one.last:
            return one is None
        self._size -= one.size
        self._incarnations.pop(key).remove()
        self._under_way.pop(key, None)
        return True

    def close(self) -> None:
        """Close the files; all that was taken stays."""
        for one in self._incarnations.values():
            one.close()
        os.close(self._lock)

    def _load(self) -> None:
        found = (path for path in self._folder.iterdir() if path.name[0] != "." and path.is_dir())
        for folder in sorted(found):
            try:
                one = IncarnationRecords.load(folder, self._segment)
            except (ValueError, OSError):
                self.damaged += 1
                continue
            self._incarnations[one.who.job, one.who.rank, one.who.incarnation] = one

    def _make_room(self, length: int) -> None:
        while self._size + length > self._limit:
            fattest = max(self._incarnations.values(), key=lambda one: one.droppable)
            if not fattest.droppable:
                break
            before = fattest.size
            try:
                fattest.thin()
            except OSError as error:
                raise SpoolFull(f"cannot write to {self._folder}: {error}") from error
            self._size += fattest.size - before
        if self._size + length > 2 * self._limit:
            raise SpoolFull(f"{self._folder} holds {self._size} bytes that wait for the weaver")


def _key(head: Head) -> Key:
    return head.job, head.rank, head.incarnation


def _locked(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise SpoolTaken(f"another agent of this node writes to {folder}") from error
    return fd
