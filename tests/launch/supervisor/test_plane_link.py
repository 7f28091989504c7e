"""The line of a launch process: it never waits, calls again, and says what is so by then."""

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.bus.codec import Frames, decode, frame
from torchloom.launch.host.sockets import Timers
from torchloom.launch.supervisor import plane_link
from torchloom.launch.supervisor.plane_link import PlaneLink
from torchloom.messages.membership import ProcessReport, ProcessReports, Watch
from torchloom.messages.plane import NO_RANK, VERSION, Head, Kept, Message, Register

from ...harness.home import TIMEOUT

HEAD = Head(VERSION, "job-1", 0, NO_RANK, "a", "train")
REGISTER = Register(HEAD, "train", -1, "here", os.getpid(), 1, "", (), "none")


class Loop:
    """What a launch process has around its line, and an agent it can call."""

    def __init__(self, folder: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.later = Timers()
        self.step = 0
        self.orders: list[Message] = []
        self.path = folder / "agent.sock"
        self.line = PlaneLink(
            self.selector,
            self.later,
            lambda: REGISTER,
            lambda: ProcessReports(HEAD, 0, (ProcessReport(0, 1, "here", step=self.step),)),
            self.orders.append,
            self.path,
        )
        self.heard: list[Message] = []
        self.agent: socket.socket | None = None
        self._frames = Frames()
        self._listener: socket.socket | None = None

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(1)
        self._listener.setblocking(False)

    def accept(self) -> socket.socket:
        assert self._listener is not None
        self.agent, _ = self._listener.accept()
        self.agent.setblocking(False)
        self._frames = Frames()
        return self.agent

    def hear(self) -> list[Message]:
        """Return all that the agent has heard on its present line."""
        assert self.agent is not None
        try:
            while data := self.agent.recv(1 << 16):
                whole = list(self._frames.feed(data))
                self.heard += [decode(each, Register | ProcessReports) for each in whole]
        except BlockingIOError:
            pass
        return self.heard

    def turn_until(self, condition: Callable[[], object]) -> None:
        """Be the launch process' loop until the condition holds."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline
            for key, ready in self.selector.select(min([*self.later.waits(), 0.01])):
                key.data(ready)
            self.later.do()

    def close(self) -> None:
        self.line.close()
        for end in (self.agent, self._listener):
            if end is not None:
                end.close()
        self.selector.close()


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.chdir(tmp_path)
    one = Loop(Path("."))
    yield one
    one.close()


def steps(messages: list[Message]) -> list[int]:
    return [message.lives[0].step for message in messages if isinstance(message, ProcessReports)]


def test_whoever_answers_hears_a_register_and_then_lives(loop: Loop) -> None:
    loop.listen()

    loop.line.open()
    loop.accept()

    assert loop.hear() == [
        REGISTER,
        ProcessReports(HEAD, 0, (ProcessReport(0, 1, "here", step=0),)),
    ]


def test_a_change_is_told_at_once_and_nothing_once_a_second(loop: Loop) -> None:
    loop.listen()
    loop.line.open()
    loop.accept()

    loop.step = 7
    loop.line.tell()
    at_once = steps(loop.hear())
    began = time.monotonic()
    loop.turn_until(lambda: len(steps(loop.hear())) == 3)

    assert at_once == [0, 7]
    assert time.monotonic() - began > 0.8 * plane_link.EVERY
    assert steps(loop.heard) == [0, 7, 7]


def test_it_calls_until_somebody_is_there_and_says_what_is_so_by_then(loop: Loop) -> None:
    loop.line.open()
    loop.step = 3
    loop.line.tell()
    loop.listen()

    loop.turn_until(lambda: plane_link._LINE in loop.later and loop.line._channel)
    loop.accept()

    assert (loop.hear()[0], steps(loop.heard)) == (REGISTER, [3])


def test_a_line_that_is_hung_up_is_called_again(loop: Loop) -> None:
    loop.listen()
    loop.line.open()
    loop.accept().close()
    loop.turn_until(lambda: loop.line._channel is None)

    loop.turn_until(lambda: loop.line._channel is not None)
    loop.accept()

    assert loop.hear()[0] == REGISTER


def test_to_one_who_does_not_read_it_says_the_newest_when_he_does(loop: Loop) -> None:
    loop.listen()
    loop.line.open()
    loop.accept()

    for loop.step in range(1, 100_000):
        loop.line.tell()
        if loop.line._unsent:
            break
    for _ in range(1000):
        loop.step += 1
        loop.line.tell()  # never waits, and takes no room
    waiting = len(loop.line._unsent)
    loop.turn_until(lambda: steps(loop.hear())[-1] == loop.step)

    assert waiting < 1000
    assert len(steps(loop.heard)) < loop.step - 900


def test_orders_are_heard_and_what_is_none_is_not(loop: Loop) -> None:
    loop.listen()
    loop.line.open()
    agent = loop.accept()
    order = Watch(HEAD, 1, 0, True)

    for said in (frame(Kept(HEAD, 0)), frame(REGISTER), b"\0\0\0\2ab", frame(order)):
        agent.send(said)
    loop.turn_until(lambda: loop.orders)

    assert loop.orders == [order]


@pytest.mark.process
def test_a_launch_process_has_nothing_of_it_before_its_line_is_opened() -> None:
    import subprocess
    import sys

    words = (
        "import sys; import torchloom.launch.supervisor.service; print('msgspec' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True)

    assert said.stdout == b"False\n"
