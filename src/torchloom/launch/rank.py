"""One rank as its agent knows it: its process, what it prints, and where that goes."""

import os
import pty
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from torchloom.launch.identity import ProcessId, boot_id, host_name
from torchloom.launch.orders import RankOrder, ReplicaOrder
from torchloom.rules.replica import ReplicaKey

_CHUNK = 1 << 16


class Log(Protocol):
    """Where a rank's output goes."""

    directory: Path

    @property
    def lost(self) -> int: ...

    def write(self, stream: str, data: bytes) -> None: ...

    def close(self) -> None: ...


class Rank:
    """A rank that was started, or is about to be. Its owner reads its outputs with `pump`."""

    def __init__(
        self,
        key: ReplicaKey,
        local_rank: int,
        attempt: int,
        logs: str,
        log: Log,
        life: int = 1,
        generation: int = 0,
    ) -> None:
        self.key = key
        self.local_rank = local_rank
        self.attempt = attempt
        self.life = life  # the how manieth process of its rank in this attempt
        self.generation = generation  # that it was born into
        self.logs = logs  # where its output is sent, when it is not written here
        self.log = log
        self.beside: dict[str, Any] = {}  # what happens to its output beside
        self.warmth = ""  # "warm", or "cold" and why
        self.number = 0  # the keeper's name for it
        self.process: ProcessId | None = None
        self.code: int | None = None
        self.outputs: dict[int, str] = {}

    @property
    def note(self) -> dict[str, Any]:
        """What the keeper remembers of a rank, for an agent that knows nothing."""
        return {
            "role": self.key.role,
            "index": self.key.index,
            "local_rank": self.local_rank,
            "attempt": self.attempt,
            "life": self.life,
            "generation": self.generation,
            "logs": self.logs,
            "directory": str(self.log.directory),
            "beside": self.beside,
            "warm": self.warmth,
        }

    @classmethod
    def from_note(cls, note: Mapping[str, Any], log: Log) -> "Rank":
        key = ReplicaKey(note["role"], note["index"])
        lived = (note["life"], note["generation"])
        rank = cls(key, note["local_rank"], note["attempt"], note["logs"], log, *lived)
        rank.beside = note["beside"]
        rank.warmth = note.get("warm", "")  # a keeper of an older torchloom has none
        return rank

    @property
    def page(self) -> str:
        """The name of its own page: the progress of a life before is not its own."""
        life = f"{self.key.role}-{self.key.index}-{self.local_rank}-{self.attempt}"
        return f"{life}-{self.life}" if self.life > 1 else life

    def is_place_of(self, order: ReplicaOrder, mine: RankOrder) -> bool:
        """Tell whether it is a process, of whatever life, of the rank that an order is for."""
        return (self.key, self.local_rank) == (order.key, mine.local_rank)

    def is_life(self, key: ReplicaKey, local_rank: int, attempt: int, life: int) -> bool:
        """Tell whether it is this process of that rank."""
        mine = (self.key, self.local_rank, self.attempt, self.life)
        return mine == (key, local_rank, attempt, life)

    @property
    def error_file(self) -> Path:
        return self.log.directory / "error.json"

    @property
    def is_alive(self) -> bool:
        """Tell whether it runs, or is about to: the keeper takes one word after the other."""
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

    def started(self, shown: Mapping[str, Any]) -> None:
        """Take note of what the keeper says of the process."""
        self.process = ProcessId(host_name(), boot_id(), shown["pid"], shown["started"])
        self.code = shown["code"]
        if shown.get("cold"):
            self.warmth = f"cold: {shown['cold']}"

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
        """Let one output go."""
        del self.outputs[fd]
        os.close(fd)
