"""Output that goes to another host: a slow link makes the rank wait, and costs no line."""

import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.agent.rank import AgentRank, Pump
from torchloom.launch.logs.sinks import MOST_UNSENT, ForwardedLog
from torchloom.launch.wire import Connection, WireMessage
from torchloom.specs.states import ReplicaKey

from ...harness.home import until

pytestmark = pytest.mark.process  # it takes seconds

TEXT = b"".join(b"line %d %s\xff\n" % (number, b"." * 100) for number in range(150_000))
SLACK = 1 << 20  # one more piece of a pipe, as JSON


class Link:
    """A rank that prints, the agent that reads it, and a launch process that may or may not."""

    def __init__(self, folder: Path) -> None:
        self._selector = selectors.DefaultSelector()
        ours, self._theirs = socket.socketpair()
        self.agent = Connection(ours, self._selector, lambda *_: None, lambda: None)
        log = ForwardedLog(folder, "a/0", self.agent.send)
        self.rank = AgentRank(ReplicaKey("a", 0), 0, 0, "a/0", log)
        self.pump = Pump(self._selector, is_full=lambda: self.agent.unsent > MOST_UNSENT)
        read_end, write_end = os.pipe()
        self.rank.watch(read_end, "stdout")
        self.pump.watch(self.rank)
        self.printed = 0
        self.most = 0
        self.heard: list[WireMessage] = []
        self._printer = threading.Thread(target=self._print, args=(write_end,))
        self._printer.start()

    def _print(self, fd: int) -> None:
        with suppress(OSError):
            while self.printed < len(TEXT):
                self.printed += os.write(fd, TEXT[self.printed : self.printed + 65536])
        os.close(fd)

    def turn(self, patience: float = 0.0) -> bool:
        """Do what an agent does over and over; tell whether anything happened."""
        happened = self._selector.select(patience)
        for key, ready in happened:
            key.data(ready)
        self.pump.resume()
        self.most = max(self.most, self.agent.unsent)
        return bool(happened)

    def read(self) -> None:
        """Begin to read at the other end."""

        def hear(message: WireMessage, _fds: list[int]) -> None:
            self.heard.append(message)

        self.launcher = Connection(self._theirs, self._selector, hear, lambda: None)

    def close(self) -> None:
        for fd in list(self.rank.outputs):
            self.rank.close(fd)
        self._printer.join()
        self.agent.close()
        self._theirs.close()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    link = Link(tmp_path)
    yield link
    link.close()


def stalled(link: Link) -> Callable[[], Any]:
    """Tell whether nothing happens any more, for as long as that takes to be sure."""
    return lambda: not link.turn(0.2)


def test_a_rank_waits_for_a_launch_process_that_does_not_read(link: Link) -> None:
    until(stalled(link))

    assert MOST_UNSENT < link.most < MOST_UNSENT + SLACK
    assert link.printed < MOST_UNSENT + SLACK
    assert len(TEXT) > 3 * link.printed


def test_no_line_is_lost_when_it_reads_again(link: Link) -> None:
    until(stalled(link))

    link.read()
    until(lambda: not link.turn(0.2) and not link.rank.outputs)

    *outputs, end = link.heard
    assert b"".join(message["data"].encode("latin-1") for message in outputs) == TEXT
    assert end == {"say": "output_end", "logs": "a/0"}
    assert (link.agent.unsent, link.most < MOST_UNSENT + SLACK) == (0, True)


def test_what_a_dead_rank_left_is_read_and_not_what_its_survivors_go_on_to_print(
    link: Link,
) -> None:
    until(stalled(link))
    full = link.agent.unsent

    link.pump.drain(link.rank)

    assert 0 < link.agent.unsent - full < 2 * SLACK


def test_without_a_launch_process_nothing_waits(link: Link) -> None:
    until(stalled(link))

    link.agent.close()
    until(lambda: not link.turn(0.2) and not link.rank.outputs)

    assert (link.agent.unsent, link.printed) == (0, len(TEXT))
