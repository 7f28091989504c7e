"""A rank's progress page: a few words of shared memory, written by its training thread alone.

The agent reads them without the rank, which may hold its GIL, be stopped or have ended. Each
word is eight bytes, aligned, and stored in one go: a reader never sees half of one.

    bytes 0-7    magic, written last        bytes 32-39  when something changed, CLOCK_MONOTONIC ns
    bytes 8-11   version of this layout     bytes 40-47  how long the last step took, ns
    bytes 12-15  phase                      bytes 48-55  pid of the writer
    bytes 16-23  step the rank is in
    bytes 24-31  steps applied
"""

import mmap
import os
import stat
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SIZE = 4096
MAGIC = int.from_bytes(b"loompage", "little")
VERSION = 2

_LAYOUT = struct.Struct("<QIIQQQQQ")
_MAGIC, STEP, APPLIED, MOVED, LASTED, _PID = 0, 2, 3, 4, 5, 6  # words
_VERSION, _PHASE = 2, 3  # half words


class StepPhase(IntEnum):
    """What a rank is busy with, as far as its program reports it."""

    STARTING = 0
    STEP = 1
    WAITING = 2  # at a boundary, for the outcome of a command or for the end of a pause
    EVALUATION = 3
    CHECKPOINT = 4
    ENDING = 5


@dataclass(frozen=True, slots=True)
class PageReading:
    """What a page held at one moment."""

    phase: int
    step: int
    applied: int
    moved_ns: int  # CLOCK_MONOTONIC
    lasted_ns: int
    pid: int

    def silent_for(self, now_ns: int) -> float:
        """Return how many seconds ago something changed."""
        return max(0, now_ns - self.moved_ns) / 1e9


class ProgressPage:
    """The writer's end. A single thread may use it."""

    def __init__(self, memory: mmap.mmap, path: Path | None = None) -> None:
        self.path = path
        self._memory = memory
        self.words = memoryview(memory).cast("Q")  # for code that writes some in every step
        self._halves = memoryview(memory).cast("I")

    @classmethod
    def open(cls, path: Path) -> "ProgressPage":
        """Take over the page at a path, which is made if it is not there, and start it afresh."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            if os.fstat(fd).st_size < SIZE:
                os.ftruncate(fd, SIZE)
            page = cls(mmap.mmap(fd, SIZE), path)
        finally:
            os.close(fd)
        page._begin()
        return page

    @classmethod
    def private(cls) -> "ProgressPage":
        """Return a page that no other process sees, for a rank without an agent."""
        page = cls(mmap.mmap(-1, SIZE))
        page._begin()
        return page

    def boundary(self, step: int, applied: int, lasted_ns: int, now_ns: int) -> None:
        """Note that a step is over and which one the rank is in now."""
        words = self.words
        words[STEP] = step
        words[APPLIED] = applied
        words[LASTED] = lasted_ns
        words[MOVED] = now_ns

    def enter(self, phase: int, now_ns: int) -> None:
        """Note what the rank is busy with from now on."""
        self._halves[_PHASE] = phase
        self.words[MOVED] = now_ns

    def close(self) -> None:
        """Release the memory; the file stays as it is."""
        self.words.release()
        self._halves.release()
        self._memory.close()

    def _begin(self) -> None:
        words = self.words
        words[_MAGIC] = 0
        self._halves[_VERSION] = VERSION
        self._halves[_PHASE] = StepPhase.STARTING
        words[STEP] = words[APPLIED] = words[LASTED] = 0
        words[_PID] = os.getpid()
        words[MOVED] = time.monotonic_ns()
        words[_MAGIC] = MAGIC


class PageView:
    """The reader's end. It reads the file instead of mapping it.

    A page that its writer has truncated is then invalid; a mapping of it would end the reader.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, path: Path) -> "PageView | None":
        """Return a view of the page at a path; None when none of this user's is there."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
            return cls(fd)
        os.close(fd)
        return None

    def read(self) -> PageReading | None:
        """Return what the page holds; None while it is not ready, or when it is not one of ours."""
        data = os.pread(self._fd, _LAYOUT.size, 0)
        if len(data) < _LAYOUT.size:
            return None
        magic, version, *words = _LAYOUT.unpack(data)
        return PageReading(*words) if (magic, version) == (MAGIC, VERSION) else None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
