"""Asking a plane: answers, refusals in the plane's words, and the way out when there is none."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchloom.client import plane as client
from torchloom.client.errors import NoPlane, PlaneLost
from torchloom.errors import Failure, UserError
from torchloom.launch.host import sockets

from ..harness.home import python
from .conftest import Script

Answering = Callable[[Path, Script], list[dict[str, Any]]]


def status(home: Path) -> dict[str, Any]:
    return {"ok": {"home": str(home), "pid": 7}}


def test_a_question_carries_its_facts_and_comes_back_answered(answering: Answering) -> None:
    asked = answering(client.door(), lambda _: [{"ok": [1, 2]}])

    assert client.ask("jobs", active=True) == [1, 2]

    assert asked == [{"ask": "jobs", "version": 1, "active": True}]


@pytest.mark.parametrize(("exit_code", "kind"), [(2, UserError), (1, Failure), (None, Failure)])
def test_what_the_weaver_refuses_is_raised_in_its_words(
    exit_code: int | None, kind: type[Exception], answering: Answering
) -> None:
    refusal = {"error": "no job 'x'", "code": "not_found", "exit_code": exit_code}
    answering(client.door(), lambda _: [refusal])

    with pytest.raises(kind) as raised:
        client.ask("show", job="x")

    assert str(raised.value) == "no job 'x'"
    assert (raised.value.code, kind.code) == ("not_found", kind.code)  # type: ignore[attr-defined]
    assert kind.code != "not_found"  # type: ignore[attr-defined]


def test_without_a_plane_the_remedy_is_named(home: Path) -> None:
    for act in (lambda: client.ask("jobs"), lambda: client.ask_control("status")):
        with pytest.raises(NoPlane) as raised:
            act()
        assert str(raised.value) == "no plane runs here; `loom up` starts one"
    assert client.find() is None
    assert client.leave() is False


def test_a_socket_that_a_killed_plane_left_is_no_plane(home: Path) -> None:
    client.made_folder()
    for path in (client.control(), client.door()):
        sockets.listen(path).close()

    assert client.find() is None
    with pytest.raises(NoPlane):
        client.ask("jobs")


def test_a_weaver_that_is_being_started_again_is_waited_for(
    home: Path, answering: Answering
) -> None:
    answering(client.control(), lambda _: [status(home)])
    later = threading.Timer(0.2, lambda: answering(client.door(), lambda _: [{"ok": "here"}]))
    later.start()

    assert client.ask("anything") == "here"

    later.join()


def test_a_plane_that_hangs_up_or_is_silent_is_lost_in_words(answering: Answering) -> None:
    answering(client.door(), lambda _: [])
    with pytest.raises(
        PlaneLost, match=r"closed the connection before it answered 'jobs'.*loom up --status"
    ):
        client.ask("jobs")


def test_an_answer_that_does_not_come_in_time_is_no_answer(home: Path) -> None:
    client.made_folder()
    with sockets.listen(client.door()), pytest.raises(PlaneLost, match="did not answer 'jobs'"):
        client.ask("jobs", timeout=0.05)


@pytest.mark.parametrize("junk", [b"\xff" * 6, b"\0\0\0\2\0\0{]", b"\0\0\0\2\0\0[]", b"\0\0"])
def test_what_answers_nonsense_is_no_plane(junk: bytes, home: Path) -> None:
    client.made_folder()
    with sockets.listen(client.door()) as listener:
        listener.setblocking(True)

        def serve() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.recv(4096)
                channel.sendall(junk)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(PlaneLost):
            client.ask("jobs", timeout=5)
        thread.join()


def test_the_plane_of_another_state_folder_is_not_taken_for_ours(
    home: Path, answering: Answering
) -> None:
    answering(client.control(), lambda _: [status(Path("/elsewhere"))])

    with pytest.raises(NoPlane, match="is that of /elsewhere, not of"):
        client.find()


def test_a_socket_however_deep_can_be_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answering: Answering
) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    answering(client.door(), lambda _: [{"ok": 1}])

    assert client.ask("jobs") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_answer_of_another_user_is_not_believed(home: Path) -> None:
    client.made_folder()
    code = (
        "import os, socket, sys; os.setuid(65534)\n"
        "s = socket.socket(fileno=int(sys.argv[1])); s.setblocking(True); s.listen()\n"
        "print(flush=True); s.accept()[0].recv(1)"
    )
    listener = sockets.listen(client.door())
    fd = listener.fileno()
    words = [sys.executable, "-S", "-c", code, str(fd)]
    with subprocess.Popen(words, pass_fds=[fd], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it listens from now on, and no longer we

        with pytest.raises(PermissionError, match="another user's process answers at"):
            client.call(client.door(), 5)

        other.wait()
    listener.close()


def test_importing_the_client_costs_next_to_nothing() -> None:
    heavy = "{'asyncio', 'socket', 'json', 'subprocess', 'dataclasses', 'inspect', 'nats'}"

    done = python(f"import sys, torchloom.client.plane; print({heavy} & set(sys.modules))")

    assert (done.stdout, done.stderr) == ("set()\n", "")
