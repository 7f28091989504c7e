"""Be the agent of ranks that train a stretch again: tell them which knobs changed, and listen.

A rank of a later generation asks its agent for the changes of its job's knobs before its first
step. Here it gets those of the run that it repeats, by the same words as after a restart.
"""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchloom.bus.codec import Frames, MessageReader, frame
from torchloom.messages.plane import Applied, Event, FromRank, Kept, Planned, Register, Welcome

_EPOCH = 1
_CHUNK = 1 << 16


class Hearing:
    """A socket for some ranks; `with` it they are answered, and what they say is noted."""

    def __init__(self, folder: Path, changes: Sequence[Planned]) -> None:
        self.path = folder / "replay.sock"
        self.acted: set[str] = set()  # commands of the log that took effect
        self.restored: list[dict[str, Any]] = []  # what each rank said of where it began
        self._changes = tuple(changes)
        self._lines: dict[socket.socket, Frames] = {}
        self._selector = selectors.DefaultSelector()
        self._awake, self._wake = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._run, name="replay-agent", daemon=True)

    def __enter__(self) -> "Hearing":
        from torchloom.unix import reachable

        with reachable(self.path) as address:
            self._listener.bind(address)
        os.chmod(self.path, 0o600)
        self._listener.listen(128)
        for end in (self._listener, self._awake):
            self._selector.register(end, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(b"\0")
        self._thread.join()
        for end in (self._listener, self._awake, self._wake, *self._lines):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._awake:
                    return
                if key.fileobj is self._listener:
                    line, _ = self._listener.accept()
                    self._lines[line] = Frames()
                    self._selector.register(line, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._receive(key.fileobj)

    def _receive(self, line: socket.socket) -> None:
        reader: MessageReader[Any] = MessageReader(FromRank)
        try:
            data = line.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(line)
            del self._lines[line]
            line.close()
            return
        for whole in self._lines[line].feed(data):
            self._hear(line, reader.read(whole))

    def _hear(self, line: socket.socket, message: Any) -> None:
        match message:
            case Register(head=head):
                with contextlib.suppress(OSError):  # it has gone; its end is told elsewhere
                    line.sendall(frame(Kept(head, 0)))
                    line.sendall(frame(Welcome(head, _EPOCH, self._changes)))
            case Applied(command=command):
                self.acted.add(command)
            case Event(kind="restored", facts=facts):
                self.restored.append(dict(facts))
