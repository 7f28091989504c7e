"""The agent that a plane has on a job's other nodes: started, started again, gone with the job."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom import settings
from torchloom.launch import wire
from torchloom.launch.agent.uplink import NodeAgentProcess
from torchloom.launch.host import descendants, sockets
from torchloom.launch.host.descendants import JobShare

from ...harness.home import home, until

__all__ = ["home"]
pytestmark = pytest.mark.process
NOWHERE = wire.LaunchAddress(host="127.0.0.1", port=9)  # no launch process: it goes on asking


@pytest.fixture
def relay(home: Path) -> Iterator[NodeAgentProcess]:
    relay = NodeAgentProcess(JobShare("train-1", "n2"), NOWHERE)
    yield relay
    relay.leave(at_once=True)
    until(lambda: relay.look(descendants.reap()) or not relay.is_there)


def answers(relay: NodeAgentProcess) -> Callable[[], bool]:
    """Return whether ranks are heard at its socket now."""

    def called() -> bool:
        relay.look(descendants.reap())
        try:
            sockets.connect(relay.address).close()
        except OSError:
            return False
        return True

    return called


def own_pid() -> int:
    found = []
    ours = f"LOOM_HOME={settings.loom_home()}".encode()  # others run this test too
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):  # others come and go
            if (
                entry.name.isdigit()
                and b"train-1/n2" in Path(entry.path, "cmdline").read_bytes()
                and ours in Path(entry.path, "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
    (pid,) = found
    return pid


def test_one_that_is_killed_comes_again_and_one_that_is_told_to_leaves(
    relay: NodeAgentProcess,
) -> None:
    relay.start()
    until(answers(relay))

    os.kill(own_pid(), signal.SIGKILL)
    until(lambda: relay.look(descendants.reap()) or not relay.is_there)
    until(answers(relay))
    relay.start()  # it runs
    relay.leave(at_once=False)
    until(lambda: relay.look(descendants.reap()) or not relay.is_there)
    relay.start()

    assert not relay.is_there
    assert relay.wait is None
    assert list((settings.loom_home() / "plane" / "spool").iterdir()) == []
    assert not relay.address.exists()


def test_one_that_cannot_live_is_told_of_once(relay: NodeAgentProcess) -> None:
    settings.runtime_dir().mkdir(mode=0o700)
    (settings.runtime_dir() / "train-1").touch()  # where its folder should be

    relay.start()
    said: list[str] = []
    until(lambda: (word := relay.look()) and not said.append(word))

    assert len(said) == 1
    assert said[0].startswith("the plane's agent there is not running: ")
    assert "train-1" in said[0]
