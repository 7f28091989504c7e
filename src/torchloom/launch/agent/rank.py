"""One rank as its agent knows it: its process, what it prints, and where that goes."""

import os
import pty
import selectors
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torchloom.launch.agent.terminal import TerminalRelay
from torchloom.launch.host.identity import ProcessIdentity, boot_id, host_name
from torchloom.launch.protocol import ChildReport, OutputRouting, RankNote, RankOrder, ReplicaOrder
from torchloom.specs.states import ReplicaKey

_CHUNK = 1 << 16
_LARGEST_PIPE = 1 << 20  # bytes that an output holds at most, unless root had it made larger


class RankLog(Protocol):
    """Where a rank's output goes."""

    directory: Path

    @property
    def lost(self) -> int: ...

    def write(self, stream: str, data: bytes) -> None: ...

    def close(self) -> None: ...


class AgentRank:
    """A rank that was started, or is about to be. Its owner reads its outputs with `pump`."""

    def __init__(
        self,
        key: ReplicaKey,
        local_rank: int,
        attempt: int,
        logs: str,
        log: RankLog,
        incarnation: int = 1,
        generation: int = 0,
    ) -> None:
        self.key = key
        self.local_rank = local_rank
        self.attempt = attempt
        self.incarnation = incarnation  # the number of the rank's process in this attempt, from 1
        self.generation = generation  # that it was started in
        self.logs = logs  # where its output is sent, when it is not written here
        self.log = log
        self.output = OutputRouting()
        self.warmth = ""  # "warm", or "cold" and why
        self.number = 0  # the keeper's name for it
        self.process: ProcessIdentity | None = None
        self.code: int | None = None
        self.outputs: dict[int, str] = {}

    @property
    def note(self) -> RankNote:
        """What the keeper remembers of a rank, for an agent that knows nothing."""
        return RankNote(**self.facts())

    def facts(self) -> dict[str, Any]:
        """Return the fields of a RankNote, for it and for what is made of it."""
        return {
            "role": self.key.role,
            "index": self.key.index,
            "local_rank": self.local_rank,
            "attempt": self.attempt,
            "incarnation": self.incarnation,
            "generation": self.generation,
            "logs": self.logs,
            "directory": str(self.log.directory),
            "output": self.output,
            "warmth": self.warmth,
        }

    @classmethod
    def from_note(cls, note: RankNote, log: RankLog) -> "AgentRank":
        lived = (note.incarnation, note.generation)
        rank = cls(note.key, note.local_rank, note.attempt, note.logs, log, *lived)
        rank.output, rank.warmth = note.output, note.warmth
        return rank

    @property
    def page(self) -> str:
        """The name of its own page: the progress of an earlier incarnation is not its own."""
        name = f"{self.key.role}-{self.key.index}-{self.local_rank}-{self.attempt}"
        return f"{name}-{self.incarnation}" if self.incarnation > 1 else name

    def is_place_of(self, order: ReplicaOrder, mine: RankOrder) -> bool:
        """Tell whether it is a process, of any incarnation, of the rank that an order is for."""
        return (self.key, self.local_rank) == (order.key, mine.local_rank)

    def is_process(self, key: ReplicaKey, local_rank: int, attempt: int, incarnation: int) -> bool:
        """Tell whether it is this process of that rank."""
        mine = (self.key, self.local_rank, self.attempt, self.incarnation)
        return mine == (key, local_rank, attempt, incarnation)

    @property
    def error_file(self) -> Path:
        return self.log.directory / "error.json"

    @property
    def is_alive(self) -> bool:
        """Tell whether it runs, or is about to: the keeper handles one message after the other."""
        return self.code is None

    def pipes(self, stdin: int | None) -> list[int]:
        """Return the descriptors its process gets as 0, 1 and 2; what they bring is read here."""
        given = [os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)]
        for stream in ("stdout", "stderr"):
            read_end, write_end = os.pipe()
            self.watch(read_end, stream)
            given.append(write_end)
        return given

    def terminal(self, attach: Callable[[int], None]) -> list[int]:
        """The same with a terminal of its own, attached before the process can look at it.

        What it prints there is its stdout.
        """
        master, slave = pty.openpty()
        attach(master)
        self.watch(master, "stdout")
        return [slave, os.dup(slave), os.dup(slave)]

    def watch(self, fd: int, stream: str) -> None:
        """Take an output, new or handed on by the keeper."""
        os.set_blocking(fd, False)
        self.outputs[fd] = stream

    def started(self, shown: ChildReport) -> None:
        """Take note of the keeper's report of the process."""
        self.process = ProcessIdentity(host_name(), boot_id(), shown.pid, shown.started)
        self.code = shown.code
        if shown.cold_reason:
            self.warmth = f"cold: {shown.cold_reason}"

    def pump(self, fd: int, copy: Callable[[bytes], None] | None = None) -> int | None:
        """Move what is there from one output to the log; return how much, nothing at its end."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal whose last user is gone
            return None
        if not data:
            return None
        self.log.write(self.outputs[fd], data)
        if copy is not None:
            copy(data)
        return len(data)

    def close(self, fd: int) -> None:
        """Close one output."""
        del self.outputs[fd]
        os.close(fd)


class Pump:
    """The outputs of all ranks of an app.

    They are not read while their receiver is full: then the pipes fill up, and the ranks that print
    wait, as they would for a slow terminal.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_output: Callable[[], None] = lambda: None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._selector = selector
        self.relay: TerminalRelay | None = None  # the terminal that watches
        self._on_moved = on_output
        self._takes_no_more = is_full
        self._watched: dict[int, AgentRank] = {}
        self._held: set[int] = set()  # not read while the receiver is full

    def watch(self, rank: AgentRank) -> None:
        for fd in rank.outputs:
            self._watched[fd] = rank
            self._selector.register(fd, selectors.EVENT_READ, partial(self._on_output, fd))

    def resume(self) -> None:
        """Read again once the receiver has room."""
        if self._held and not self._is_full():
            for fd in self._held:
                self._selector.register(fd, selectors.EVENT_READ, partial(self._on_output, fd))
            self._held.clear()

    def drain(self, rank: AgentRank) -> None:
        """Read what is there now; other processes that hold the output open may still add to it."""
        for fd in list(rank.outputs):
            left = _LARGEST_PIPE
            while (moved := self._move(fd)) and left > 0:
                left -= moved
            if moved is None:
                self._end(fd)

    def finish(self, patience: float) -> None:
        """Read all outputs to their end, or until patience runs out, and close them."""
        deadline = time.monotonic() + patience
        for fd, rank in list(self._watched.items()):
            while (moved := self._move(fd)) is not None and time.monotonic() < deadline:
                if moved == 0:
                    time.sleep(0.001)
            self._end(fd)
            rank.log.close()

    def _on_output(self, fd: int, _ready: int) -> None:
        if fd not in self._watched:
            return
        if self._is_full():
            self._held.add(fd)
            self._selector.unregister(fd)
        elif self._move(fd) is None:
            self._end(fd)

    def _move(self, fd: int) -> int | None:
        """Return how many bytes were moved; nothing at all when the output has ended."""
        copy = self.relay.send if self.relay is not None else None
        moved = self._watched[fd].pump(fd, copy)
        if moved:
            self._on_moved()
        return moved

    def _is_full(self) -> bool:
        return self._takes_no_more() or (self.relay is not None and self.relay.full)

    def _end(self, fd: int) -> None:
        rank = self._watched.pop(fd)
        if fd in self._held:
            self._held.discard(fd)
        else:
            self._selector.unregister(fd)
        if self.relay is not None:
            self.relay.detach(fd)
        rank.close(fd)
        if not rank.outputs:
            rank.log.close()
