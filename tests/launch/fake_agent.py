"""The plane's agent as a launch process sees it, and behind it a weaver that says what a test says.

It is strict: whatever is not a register or the lives of a launch process is an error of the test.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from torchloom.bus.codec import Frames, decode, frame
from torchloom.messages.membership import (
    EndProcess,
    Fork,
    MakeStore,
    ProcessReport,
    ProcessReports,
    Restart,
    Watch,
)
from torchloom.messages.plane import NO_RANK, VERSION, Head, Kept, Message, Register

from ..harness.home import until


class FakeAgent:
    """Takes calls at a path; the last one who called is spoken to."""

    def __init__(self, path: Path) -> None:
        self.registers: list[Register] = []
        self.lives: list[ProcessReports] = []
        self.heard_at: list[float] = []  # of each of these
        self.calls = 0
        self.epoch = 1
        self._path = path
        self._errors: list[BaseException] = []
        self._lines: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> "FakeAgent":
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        if error is None:
            assert self._errors == []

    def listen(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        folder = os.open(self._path.parent, os.O_RDONLY)  # the path may be long
        self._listener.bind(f"/proc/self/fd/{folder}/{self._path.name}")
        os.close(folder)
        self._listener.listen(4)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def hang_up(self) -> None:
        """Be gone, as an agent that was killed."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._path.unlink(missing_ok=True)
        self._listener, self._lines = None, []

    # What a weaver says.

    def say(self, order: Message) -> None:
        self._lines[-1].sendall(frame(order))

    def watch(self, is_live: bool = True, generation: int | None = None) -> None:
        self.say(Watch(self._head(generation), self.epoch, self.attempt, is_live))

    def fork(self, rank: int, life: int, generation: int, node: str | None = None) -> None:
        node = self.newest.lives[0].node if node is None else node
        self.say(Fork(self._head(generation), self.epoch, self.attempt, rank, life, node))

    def make_store(self, generation: int) -> None:
        node = self.newest.lives[0].node
        self.say(MakeStore(self._head(generation), self.epoch, self.attempt, node))

    def end_life(self, rank: int, life: int) -> None:
        self.say(EndProcess(self._head(), self.epoch, self.attempt, rank, life, "hang"))

    def restart(self, reason: str, cause: str) -> None:
        self.say(Restart(self._head(), self.epoch, self.attempt, reason, cause))

    # What is known.

    @property
    def newest(self) -> ProcessReports:
        return self.lives[-1]

    @property
    def attempt(self) -> int:
        return self.newest.attempt

    def life(self, rank: int, life: int) -> ProcessReport | None:
        found = [one for one in self.newest.lives if (one.rank, one.life) == (rank, life)]
        return found[0] if found else None

    def until_told(self, condition: Callable[[ProcessReports], object]) -> ProcessReports:
        """Come back with the first lives, old or new, for which the condition holds."""
        until(lambda: any(condition(one) for one in list(self.lives)))
        return next(one for one in self.lives if condition(one))

    def until_ended(self, rank: int, life: int) -> ProcessReport:
        until(lambda: (one := self.life(rank, life)) is not None and one.code is not None)
        found = self.life(rank, life)
        assert found is not None
        return found

    def answered(self, act: Callable[[], None]) -> ProcessReports:
        """Do something and return the first lives that are said after it."""
        before = len(self.lives)
        act()
        until(lambda: len(self.lives) > before)
        return self.lives[before]

    def _head(self, generation: int | None = None) -> Head:
        newest = self.newest.head
        return Head(VERSION, newest.job, generation or newest.generation, NO_RANK, "")

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                self.calls += 1
                self._lines.append(line)
                threading.Thread(target=self._hear, args=(line,), daemon=True).start()

    def _hear(self, line: socket.socket) -> None:
        frames = Frames()
        with contextlib.suppress(OSError):
            while data := line.recv(1 << 16):
                for whole in frames.feed(data):
                    self._take(line, whole)

    def _take(self, line: socket.socket, whole: bytes) -> None:
        try:
            message = decode(whole, Register | ProcessReports)
            assert message.head.rank == NO_RANK
        except BaseException as error:  # the test is told at its end: this is another thread
            self._errors.append(error)
            raise
        if isinstance(message, Register):
            self.registers.append(message)
            line.sendall(frame(Kept(message.head, 0)))  # an agent says so to whoever registers
        elif isinstance(message, ProcessReports):
            self.heard_at.append(time.monotonic())
            self.lives.append(message)
