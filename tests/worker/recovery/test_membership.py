"""Words beside the records: sent at once, said again, heard by whoever waits."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.bus.codec import Frames, decode, frame
from torchloom.messages.membership import (
    Go,
    JoinGeneration,
    LetStand,
    MembershipReport,
    Release,
    Restored,
    Training,
)
from torchloom.messages.plane import VERSION, FromRank, Goodbye, Head, Kept, Message, Register
from torchloom.worker.recovery.membership import MembershipLink, MembershipOutbox
from torchloom.worker.threadlet.link import AgentLink

HEAD = Head(VERSION, "job", 0, 0, "life", "trainer")


def head(generation: int) -> Head:
    return Head(VERSION, "job", generation, 0, "life", "trainer")


def drained(words: MembershipOutbox) -> list[Message]:
    found: list[Message] = []
    while (data := words.take()) is not None:
        found += [decode(whole, MembershipReport) for whole in Frames().feed(data)]
    return found


def test_a_word_is_old_on_the_next_connection_and_what_holds_is_not() -> None:
    woken: list[int] = []
    words = MembershipOutbox(lambda: woken.append(1))
    words.keep_sending(Training(HEAD, 3))
    words.send(Restored(HEAD, 0.5))

    words.connected()

    assert drained(words) == [Training(HEAD, 3)]
    assert len(woken) == 2


def test_what_holds_no_longer_is_not_said_again() -> None:
    words = MembershipOutbox(lambda: None)
    words.keep_sending(Training(HEAD, 3))
    words.keep_sending(None)

    words.connected()
    words.repeat()

    assert drained(words) == []


def test_a_newer_generation_is_told_in_the_hearing_thread_and_ends_what_was_heard_before() -> None:
    called: list[int] = []
    line = MembershipLink(MembershipOutbox(lambda: None), 3, called.append)

    line.receive(LetStand(head(3), 1))
    line.receive(JoinGeneration(head(5), 1))
    line.receive(JoinGeneration(head(4), 1))
    line.receive(JoinGeneration(head(5), 1))

    assert called == [5]
    assert line.newest == 5
    assert [line.next(0), line.next(0), line.next(0)] == [JoinGeneration(head(5), 1)] * 2 + [None]


def test_a_rank_that_trains_already_answers_the_word_to_train_by_itself() -> None:
    words = MembershipOutbox(lambda: None)
    line = MembershipLink(words, 3)
    line.keep_sending(Training(head(3), 7))
    line.training = 3
    drained(words)

    line.receive(Go(head(3), 1, 7))

    assert drained(words) == [Training(head(3), 7)]
    assert line.next(0) is None


def test_whoever_waits_is_woken_by_what_is_heard() -> None:
    line = MembershipLink(MembershipOutbox(lambda: None), 3)
    threading.Timer(0.01, line.receive, (Release(head(3), 1),)).start()

    assert line.next(30.0) == Release(head(3), 1)


class Agent:
    """The other end of a link: says what it has kept, and reads on."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def accept(self) -> "Agent":
        self._line, _ = self._listener.accept()
        self._line.settimeout(10)
        self._frames = Frames()
        self._waiting: list[Message] = []
        return self

    def next(self) -> Message:
        while not self._waiting:
            for whole in self._frames.feed(self._line.recv(1 << 16)):
                self._waiting.append(decode(whole, FromRank | MembershipReport))
        return self._waiting.pop(0)

    def say(self, message: Message) -> None:
        self._line.sendall(frame(message))

    def hang_up(self) -> None:
        self._line.close()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[AgentLink, Agent]]:
    agent = Agent(tmp_path / "agent")
    register = Register(HEAD, "trainer", 0, "here", 1, 1, "r", (), "api")
    told = (lambda: register, lambda _: None, lambda: (), lambda _: None, lambda metrics: metrics)
    one = AgentLink(str(tmp_path / "agent"), *told)
    one.start()
    yield one, agent
    one.close(Goodbye(HEAD, 0))


def test_words_go_before_the_agent_counts_and_are_not_counted(
    link: tuple[AgentLink, Agent],
) -> None:
    one, agent = link
    agent.accept()
    assert isinstance(agent.next(), Register)
    one.send(Goodbye(HEAD, 5))
    one.membership.send(Training(HEAD, 3))

    assert agent.next() == Training(HEAD, 3)  # a record waits until the agent says what it has
    agent.say(Kept(HEAD, 0))
    assert agent.next() == Goodbye(HEAD, 5)
    agent.hang_up()
    agent.accept()
    assert isinstance(agent.next(), Register)
    agent.say(Kept(HEAD, 1))
    one.membership.send(Training(HEAD, 4))
    assert agent.next() == Training(HEAD, 4)  # the record was kept: words did not shift the count


def test_what_holds_is_said_again_on_a_new_connection(link: tuple[AgentLink, Agent]) -> None:
    one, agent = link
    agent.accept()
    agent.next()
    one.membership.keep_sending(Training(HEAD, 3))
    assert agent.next() == Training(HEAD, 3)

    agent.hang_up()
    agent.accept()

    assert isinstance(agent.next(), Register)
    assert agent.next() == Training(HEAD, 3)
