"""A rank without torch: it notes each record in a file of its own, then says it to its agent.

Words: the agent's socket, the file, the job, the rank, a folder. It goes on until the folder holds
a file `enough`, and leaves when the agent has all of it on its disk.
"""

import os
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path

from torchloom.bus.codec import Frames, decode, frame
from torchloom.bus.progress_page import ProgressPage
from torchloom.messages.plane import (
    VERSION,
    Event,
    Head,
    Kept,
    Message,
    Metrics,
    Register,
    ToRank,
    Welcome,
)

PAUSE = 0.002  # seconds between two records


class Rank:
    """Keeps what its agent has not confirmed, and says it again on every new connection."""

    def __init__(self, address: str, head: Head, page: ProgressPage) -> None:
        self._address = address
        self._head = head
        self._page = page
        self._waiting: deque[tuple[int, Message]] = deque()
        self._channel: socket.socket | None = None
        self._frames = Frames()
        self._ready = False
        self.said = 0

    def say(self, message: Message) -> None:
        self.said += 1
        self._waiting.append((self.said, message))
        if self._ready:
            self._send(message)

    def turn(self) -> None:
        """Call the agent if need be, and hear what it says."""
        if self._channel is None:
            self._call()
        else:
            self._hear()

    def done(self) -> bool:
        return not self._waiting

    def _call(self) -> None:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(self._address)
        except OSError:
            channel.close()
            return
        self._channel, self._frames, self._ready = channel, Frames(), False
        self._send(self._register())

    def _register(self) -> Register:
        return Register(
            self._head,
            role="trainer",
            local_rank=self._head.rank,
            node="here",
            pid=os.getpid(),
            started=1,
            replica=f"trainer/{self._head.rank}",
            devices=(f"here/cpu/{self._head.rank}",),
            boundary="api",
            page=str(self._page.path),
        )

    def _send(self, message: Message) -> None:
        try:
            if self._channel is not None:
                self._channel.sendall(frame(message))
        except OSError:
            self._hang_up()

    def _hear(self) -> None:
        assert self._channel is not None
        while self._channel is not None and select.select([self._channel], [], [], 0)[0]:
            try:
                data = self._channel.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._hang_up()
                return
            for whole in self._frames.feed(data):
                self._take(decode(whole, ToRank))

    def _take(self, message: Message) -> None:
        if isinstance(message, Kept):
            while self._waiting and self._waiting[0][0] <= message.upto:
                self._waiting.popleft()
            if not self._ready:
                self._ready = True
                for _, waiting in list(self._waiting):
                    self._send(waiting)
        elif isinstance(message, Welcome):
            pass

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel, self._ready = None, False


def main(address: str, diary: str, job: str, rank: str, folder: str) -> None:
    head = Head(VERSION, job, 0, int(rank), f"life-{os.getpid()}")
    page = ProgressPage.open(Path(folder) / f"page-{rank}")
    me = Rank(address, head, page)
    with open(diary, "a", buffering=1) as own:
        step = 0
        while not (Path(folder) / "enough").exists():
            step += 1
            own.write(f"{head.incarnation} {step}\n")
            if step % 10:
                me.say(Metrics(head, ("loss",), ((step, time.time(), 1.0 / step),)))
            else:
                me.say(Event(head, "tenth", step, time.time()))
            page.boundary(step, step, 2_000_000, time.monotonic_ns())
            me.turn()
            time.sleep(PAUSE)
    while not me.done():
        me.turn()
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
