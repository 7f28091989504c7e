"""An agent and a weaver in one, for tests: it hears ranks on a unix socket and commands them."""

import contextlib
import itertools
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from torchloom.bus.codec import Frames, decode, frame
from torchloom.messages.plane import (
    Applied,
    Decided,
    FromRank,
    Head,
    Kept,
    Kind,
    Message,
    Outcome,
    Planned,
    Prepare,
    RankRefusal,
    Ready,
    Register,
    Welcome,
    Write,
)

from ...harness.home import until

M = TypeVar("M", bound=Message)


class FakeAgent:
    """Listens at a path; keeps what each rank has said, in order."""

    def __init__(
        self,
        path: Path,
        changes: tuple[Planned, ...] = (),
        kept: Counter[str] | None = None,
        most: int = sys.maxsize,
    ) -> None:
        self.path = path
        self.kept = Counter() if kept is None else kept  # records of each life, on its disk
        self._most = most  # records it keeps; it is about to die
        self.heard: list[Message] = []
        self.lines: dict[int, socket.socket] = {}
        self.heads: dict[int, Head] = {}
        self.connections = 0
        self._open = 0  # connections that may still have something to read
        self._counting = threading.Lock()
        self.changes = changes
        self._numbers = itertools.count()
        self._speaking = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    # What was heard.

    def of(self, kind: type[M], rank: int | None = None, command: str | None = None) -> list[M]:
        """Return the messages of a kind, of one rank or all, about one command or all."""
        return [
            message
            for message in list(self.heard)
            if isinstance(message, kind)
            and rank in (None, message.head.rank)
            and command in (None, getattr(message, "command", None))
        ]

    def wait(self, kind: type[M], count: int = 1, **which: Any) -> list[M]:
        """Return the messages of a kind once there are so many."""
        until(lambda: len(self.of(kind, **which)) >= count)
        return self.of(kind, **which)

    def wait_for_silence(self) -> None:
        """Come back when all that was sent on connections that have ended is heard."""
        until(lambda: self._open == 0)

    def wait_for_boundaries(self, world: int, knob: str = "") -> None:
        """Come back when all ranks have a step boundary, and this knob."""

        def known(rank: int) -> bool:
            said = self.of(Register, rank)
            names = {one.name for one in said[-1].knobs} if said else set()
            return bool(said) and said[-1].boundary != "none" and (not knob or knob in names)

        until(lambda: all(known(rank) for rank in range(world)))

    # What is said.

    def say(self, rank: int, make: Callable[..., Message], *words: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has come to its end
            self.send(self.lines[rank], frame(make(self.heads[rank], *words)))

    def send(self, line: socket.socket, data: bytes) -> None:
        """Send bytes to a rank whole: two threads speak here."""
        with self._speaking:
            line.sendall(data)

    def name(self) -> str:
        return f"c{next(self._numbers)}"

    def prepare(self, ranks: range, kind: Kind, payload: dict[str, Any], command: str = "") -> str:
        """Ask for promises; return the command's name."""
        command = command or self.name()
        for rank in ranks:
            self.say(rank, Prepare, command, kind, payload)
        return command

    def promises(self, command: str, world: int) -> list[Ready]:
        return self.wait(Ready, world, command=command)

    def decide(self, command: str, promises: list[Ready]) -> int | None:
        """Have the lowest rank write the outcome; return the one that is there."""
        step = max(ready.step + 1 + ready.ahead for ready in promises)
        self.say(0, Write, command, step)
        return self.wait(Decided, 1, rank=0, command=command)[0].effective

    def tell(self, ranks: range, command: str, effective: int | None) -> None:
        for rank in ranks:
            self.say(rank, Outcome, command, effective)

    def command(self, world: int, kind: Kind, payload: dict[str, Any]) -> tuple[str, int | None]:
        """Do it all once: prepare, decide, tell; return the command and the step of a commit."""
        command = self.prepare(range(world), kind, payload)
        effective = self.decide(command, self.promises(command, world))
        self.tell(range(world), command, effective)
        return command, effective

    def insist(
        self, world: int, kind: Kind, payload: dict[str, Any] | None = None
    ) -> tuple[str, int]:
        """Offer it until it is committed: on a busy machine ranks may wait too long for us."""
        while True:
            command, effective = self.command(world, kind, payload or {})
            if effective is not None:
                return command, effective

    def set(self, world: int, name: str, value: Any) -> list[Applied]:
        """Change a knob on all ranks; return what they say of it."""
        command, _ = self.insist(world, "knob", {"name": name, "value": value})
        return self.wait(Applied, world, command=command)

    def refusal(self, kind: Kind, payload: dict[str, Any]) -> str:
        """Return why rank 0 does not do it; a promise that it gives before it knows is let go."""
        found: list[RankRefusal] = []

        def is_refused() -> bool:
            command = self.prepare(range(1), kind, payload)
            self._answered(command)
            found[:] = self.of(RankRefusal, command=command)
            return bool(found)

        until(is_refused)
        return found[0].why

    def _answered(self, command: str) -> None:
        until(lambda: self.of(RankRefusal, command=command) or self.of(Ready, command=command))

    # How it lives.

    def close(self) -> None:
        """Die as an agent does: every connection ends."""
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for line in list(self.lines.values()):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                line, _ = self._listener.accept()
                self.connections += 1
                self._count(1)
                threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def _listen(self, line: socket.socket) -> None:
        frames = Frames()
        try:
            with contextlib.suppress(OSError):
                while data := line.recv(1 << 16):
                    for whole in frames.feed(data):
                        self._hear(line, decode(whole, FromRank))
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._counting:
            self._open += more

    def _hear(self, line: socket.socket, message: Message) -> None:
        rank = message.head.rank
        if isinstance(message, Register) and self.lines.get(rank) is not line:
            self.lines[rank], self.heads[rank] = line, message.head
            self.say(rank, Welcome, 1, self.changes)
        life = message.head.incarnation
        if not isinstance(message, Register):
            if self.kept[life] == self._most:
                return
            self.kept[life] += 1
        self.heard.append(message)
        self.say(rank, Kept, self.kept[life])


@contextlib.contextmanager
def listening(path: Path, *words: Any, **more: Any) -> Iterator[FakeAgent]:
    """Be an agent at this path for a while."""
    agent = FakeAgent(path, *words, **more)
    try:
        yield agent
    finally:
        agent.close()
