"""The launch process' end of its agents, with agents that are sockets of the test."""

import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchloom.launch import wire
from torchloom.launch.protocol import EndJob, LaunchMessage, SignalRanks, Unknown
from torchloom.launch.supervisor.nodes import Nodes
from torchloom.launch.wire import Connection, WireMessage

TOKEN = "secret"
PROCESS = {"host": "n2", "boot": "b", "pid": 7, "started": "1"}
HELLO = {"say": "hello", "host": "n2", "process": PROCESS, "challenge": "c", "ranks": []}


class Caller:
    """An agent as far as it is heard: it says what the test says, and keeps what it is told."""

    def __init__(self, selector: selectors.BaseSelector, port: int) -> None:
        self.told: list[WireMessage] = []
        self.is_dismissed = False
        channel = socket.create_connection(("127.0.0.1", port))
        self.connection = Connection(channel, selector, self._hear, self._end)

    def say(self, **message: Any) -> None:
        self.connection.send(message)

    def prove(self, token: str = TOKEN) -> None:
        challenge = next(each["challenge"] for each in self.told if each["do"] == "prove")
        self.say(say="proof", proof=wire.proof(token, "agent", challenge))

    def _hear(self, message: WireMessage, _fds: list[int]) -> None:
        self.told.append(message)

    def _end(self) -> None:
        self.is_dismissed = True


def kind_of(message: LaunchMessage) -> str:
    return message.kind if isinstance(message, Unknown) else message.tag[1]


class Office:
    """`Nodes` with a listener, and everything it tells."""

    def __init__(self, names: tuple[str, ...] = ("n1", "n2")) -> None:
        self.selector = selectors.DefaultSelector()
        self.heard: list[tuple[str, str, Any]] = []
        self.nodes = Nodes(
            self.selector,
            names,
            TOKEN,
            "app-1",
            lambda name, hello: self.heard.append(("joined", name, hello.host)),
            lambda name, message: self.heard.append(("message", name, kind_of(message))),
            lambda name, evidence: self.heard.append(("lost", name, evidence)),
        )
        self.listener = wire.listen_on("127.0.0.1")
        self.nodes.take_calls(self.listener)
        self.callers: list[Caller] = []

    def call(self) -> Caller:
        caller = Caller(self.selector, self.listener.getsockname()[1])
        self.callers.append(caller)
        self.until(lambda: any(each["do"] == "prove" for each in caller.told))
        return caller

    def joined(self) -> Caller:
        caller = self.call()
        caller.say(**HELLO)
        caller.prove()
        self.until(lambda: self.nodes.have_joined(["n2"]))
        return caller

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(1000):
            if condition():
                return
            for key, ready in self.selector.select(0.01):
                key.data(ready)
        raise AssertionError(self.heard)

    def close(self) -> None:
        self.nodes.close()
        for caller in self.callers:
            caller.connection.close()
        self.listener.close()
        self.selector.close()


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.close()


def test_a_caller_joins_with_hello_and_proof_in_either_order(office: Office) -> None:
    caller = office.call()

    caller.prove()
    caller.say(**HELLO)

    office.until(lambda: office.heard)
    assert office.heard == [("joined", "n2", "n2")]
    assert office.nodes.missing() == ("n1",)
    assert office.nodes.address("n2") == "127.0.0.1"


def test_a_caller_that_does_not_know_the_token_is_sent_away(office: Office) -> None:
    caller = office.call()

    caller.say(**HELLO)
    caller.prove("guessed")

    office.until(lambda: caller.is_dismissed)
    assert office.heard == []


def test_a_host_that_is_not_of_the_job_is_sent_away(office: Office) -> None:
    caller = office.call()

    caller.prove()
    caller.say(**{**HELLO, "host": "n9"})

    office.until(lambda: caller.is_dismissed)
    assert office.heard == []


def test_what_is_said_before_the_proof_is_heard_after_joining(office: Office) -> None:
    caller = office.call()

    caller.say(**HELLO)
    caller.say(say="exited", ranks=[])
    caller.prove()

    office.until(lambda: len(office.heard) == 2)
    assert office.heard == [("joined", "n2", "n2"), ("message", "n2", "exited")]


def test_a_stranger_is_not_listened_to_for_ever(office: Office) -> None:
    caller = office.call()

    for _ in range(10_001):
        caller.say(say="output_end", logs="a")

    office.until(lambda: caller.is_dismissed)
    assert office.heard == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"say": "output"},
        {"say": "exited", "ranks": [{}]},
        {**HELLO, "process": {}},
        {**HELLO, "place": "2"},
        {**HELLO, "seat": 2},
        {"say": "proof", "proof": None},
        {"say": 1},
        {},
    ],
)
def test_a_message_that_does_not_fit_its_kind_ends_the_connection(
    office: Office, wrong: dict[str, Any]
) -> None:
    caller = office.call()

    caller.say(**wrong)

    office.until(lambda: caller.is_dismissed)
    assert office.heard == []


def test_an_agent_of_another_version_may_send_kinds_and_fields_that_we_do_not_know(
    office: Office,
) -> None:
    caller = office.call()

    caller.say(**HELLO, mood="good")
    caller.say(say="weather", is_fair=True)
    caller.prove()
    caller.say(say="exited", ranks=[])

    office.until(lambda: ("message", "n2", "exited") in office.heard)
    assert not caller.is_dismissed


def test_a_stranger_may_not_fill_the_memory_before_it_has_shown_who_it_is(office: Office) -> None:
    at_once, in_pieces = office.call(), office.call()

    at_once.say(say="log", text="x" * (1 << 20))
    for _ in range(40):
        in_pieces.say(say="log", text="x" * (1 << 15))
    office.until(lambda: at_once.is_dismissed and in_pieces.is_dismissed)

    assert office.heard == []


def test_only_so_many_strangers_are_waited_for(office: Office) -> None:
    callers = [office.call() for _ in range(256)]
    late = Caller(office.selector, office.listener.getsockname()[1])
    office.callers.append(late)
    office.until(lambda: late.is_dismissed)

    callers[7].say(**HELLO)
    callers[7].prove()
    office.until(lambda: office.nodes.have_joined(["n2"]))

    assert late.told == []
    assert office.nodes.patience() is not None  # until the others have had time enough


def test_what_is_sent_to_an_agent_that_is_away_waits_for_it(office: Office) -> None:
    office.nodes.send("n2", SignalRanks(15))
    office.nodes.tell("n2", EndJob(1.0, 0))

    caller = office.joined()
    office.until(lambda: len(caller.told) == 2)

    assert [each["do"] for each in caller.told] == ["prove", "signal"]


def test_an_agent_that_comes_back_in_time_is_not_lost(office: Office) -> None:
    first = office.joined()
    first.connection.close()
    office.until(lambda: office.nodes.patience() is not None)

    office.joined()
    office.nodes.expire()

    assert office.heard == [("joined", "n2", "n2")] * 2
    assert office.nodes.patience() is None


def test_a_second_agent_takes_the_place_of_the_first(office: Office) -> None:
    first = office.joined()

    second = office.call()
    second.say(**HELLO)
    second.prove()
    office.until(lambda: first.is_dismissed)
    office.nodes.tell("n2", EndJob(1.0, 0))
    office.until(lambda: second.told[-1]["do"] == "end")

    assert office.heard == [("joined", "n2", "n2")] * 2


def test_a_node_that_was_given_up_is_lost_once_and_may_not_come_back(office: Office) -> None:
    office.joined()

    office.nodes.give_up("n2", "silence")
    office.nodes.give_up("n2", "more silence")
    late = office.call()
    late.say(**HELLO)
    late.prove()
    office.until(lambda: late.is_dismissed)

    assert office.heard == [("joined", "n2", "n2"), ("lost", "n2", "silence")]
    assert office.nodes.present == ("n1",)


def test_a_node_that_was_released_may_leave_and_is_not_missed(office: Office) -> None:
    caller = office.joined()

    office.nodes.release("n2")
    caller.connection.close()
    office.until(lambda: not office.nodes.have_joined(["n2"]))

    assert office.nodes.patience() is None
    assert "n2" not in (*office.nodes.missing(), *office.nodes.lost)
