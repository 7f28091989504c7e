"""A threadlet tells what its process does, and what its job wants when that is nothing."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.bus.codec import Frames, decode, frame
from torchloom.messages.plane import Event, FromRank, Kept, Message, OwnStacks, ShowStacks
from torchloom.worker.threadlet.link import AgentLink, own_stacks
from torchloom.worker.threadlet.rank_identity import hang_settings

from ...harness.message_samples import HEAD, REGISTER


class Call:
    """An agent's end of one connection."""

    def __init__(self, line: socket.socket) -> None:
        line.settimeout(30.0)
        self._line = line
        self._heard = self._listen()

    def say(self, message: Message) -> None:
        self._line.sendall(frame(message))

    def hear(self) -> Message:
        return next(self._heard)

    def end(self) -> None:
        self._line.close()

    def _listen(self) -> Iterator[Message]:
        frames = Frames()
        while True:
            for whole in frames.feed(self._line.recv(1 << 16)):
                yield decode(whole, FromRank | OwnStacks)


def event(step: int) -> Event:
    return Event(HEAD, "note", step, 1.5)


def test_stacks_are_told_at_once_and_are_no_record(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    link = AgentLink(str(tmp_path / "s"), lambda: REGISTER, print, lambda: (), print, lambda m: m)
    link.start()
    call = Call(listener.accept()[0])
    assert call.hear() == REGISTER
    call.say(Kept(HEAD, 0))

    link.send(event(1))
    first = call.hear()
    call.say(ShowStacks(HEAD, "s1"))
    stacks = call.hear()
    link.send(event(2))
    second = call.hear()
    call.say(Kept(HEAD, 2))  # of three that came two are records
    call.end()
    call = Call(listener.accept()[0])
    call.hear()
    call.say(Kept(HEAD, 2))
    link.send(event(3))
    third = call.hear()
    link.close(event(4))
    call.end()
    listener.close()

    assert isinstance(stacks, OwnStacks)
    assert (stacks.head, stacks.request) == (HEAD, "s1")
    assert (first, second, third) == (event(1), event(2), event(3))


def test_the_main_thread_comes_first_with_the_innermost_call() -> None:
    found: list[OwnStacks] = []
    asking = threading.Thread(target=lambda: found.append(own_stacks(HEAD, "s1")), name="asks")

    asking.start()
    asking.join()

    (said,) = found
    main = said.threads[0]
    here = [frame for frame in main.frames if frame.file == __file__]
    assert (said.head, said.request, main.is_main, main.name) == (HEAD, "s1", True, "MainThread")
    assert main.frames[0].file == threading.__file__
    assert here[0].function == "test_the_main_thread_comes_first_with_the_innermost_call"
    assert "asks" not in [thread.name for thread in said.threads]


@pytest.mark.parametrize(
    ("env", "wishes", "complaint"),
    [
        ({}, {}, ""),
        ({"LOOM_HANG_LIMIT": "90"}, {"limit": 90.0}, ""),
        ({"LOOM_HANG": "notify", "LOOM_HANG_LIMIT": "0.5"}, {"action": "notify", "limit": 0.5}, ""),
        ({"LOOM_HANG": "off"}, {"action": "off"}, ""),
        ({"LOOM_HANG": "maybe"}, {}, "LOOM_HANG='maybe' is ignored; it must be one of kill,"),
        ({"LOOM_HANG_LIMIT": "soon"}, {}, "LOOM_HANG_LIMIT='soon' is ignored; it must be a"),
        ({"LOOM_HANG_LIMIT": "inf"}, {}, "LOOM_HANG_LIMIT='inf' is ignored"),
        ({"LOOM_HANG_LIMIT": "-3"}, {}, "LOOM_HANG_LIMIT='-3' is ignored"),
    ],
)
def test_what_a_job_wants_is_read_with_care(
    env: dict[str, str], wishes: object, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hang_settings(env) == wishes
    assert complaint in capsys.readouterr().err
