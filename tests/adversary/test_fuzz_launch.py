"""Whatever is sent to the processes of a launch: they refuse it, keep their ranks, and go on."""

import array
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.protocol import FROM_KEEPER, TO_SUPERVISOR
from torchloom.unix import receive_message, send_message

from ..harness.home import home, until
from ..harness.plane_jobs import LOOM
from ..harness.warm_zygote import hearth
from ..launch.keeper.test_keeper import Keeper
from ..launch.test_protocol import SENT
from . import fuzzing
from .fuzzing import PATIENCE, Dice, Fuzz, Watched
from .test_fuzz_sockets import messages

__all__ = ["hearth", "home"]

pytestmark = pytest.mark.process
_SILENCE = 20.0  # seconds in which a process closes a connection whose client has said all


def call(address: str | tuple[str, int], data: bytes, fds: Sequence[int] = ()) -> bytes:
    """Send bytes, and descriptors with the first of them; return what comes back."""
    is_path = isinstance(address, str)
    with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as channel:
        channel.settimeout(_SILENCE)
        channel.connect(address)
        if fds and data:
            given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            channel.sendmsg([data[:1]], given)
            data = data[1:]
        return fuzzing.exchange(channel, data)


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = Keeper(tmp_path / "keeper", orphan_limit=600.0)
    yield made
    made.close()


@fuzzing.short_and_long
def test_messages_of_any_bytes_to_a_keeper_end_neither_it_nor_its_ranks(
    keeper: Keeper, seconds: float
) -> None:
    rank = int(keeper.agent.start(1, ["sleep", "3600"])["pid"])
    order = {"do": "start", "id": 99, "argv": ["true"], "cwd": "/", "env": {"A": "b"}, "given": 3}
    samples: list[dict[str, Any]] = [
        {**order, "note": {}, "terminal": False, "warm": False},
        {"do": "signal", "id": 99, "signum": 0},
        {"do": "bury", "id": 99},
        {"do": "none"},
        *(json.loads(text) for text in SENT[FROM_KEEPER]),  # none that a keeper takes
    ]

    def attempt(dice: Dice) -> None:
        with open(os.devnull, "r+b") as null:
            fds = [null.fileno()] * dice.choice((0, 0, 3, 3, 4, 60))
            call(str(keeper.address), messages(dice, samples), fds)

    def answers() -> None:
        _, hello, fds = keeper.call()
        for fd in fds:
            os.close(fd)
        keeper.agents.pop().connection.close()
        assert [one["code"] for one in hello["children"] if one["pid"] == rank] == [None]

    watched = [Watched("keeper", keeper.process.pid), Watched("rank", rank)]
    Fuzz("keeper", seconds, watched).run(attempt, answers)


@pytest.mark.needs("torch")
@fuzzing.short_and_long
def test_requests_of_any_bytes_to_a_zygote_do_not_end_it(hearth: Path, seconds: float) -> None:
    (address,) = hearth.glob("run/torchloom/zygote-*.sock")
    facts = {"job": "fuzz", "node": "n", "address": str(hearth / "fuzz.keeper"), "cwd": "/"}
    keep = {"do": "keep", **facts, "argv": ["true"], "env": {"A": "b"}, "orphan_limit": 5.0}
    samples: list[dict[str, Any]] = [keep, {**keep, "alert": "x"}, {"do": "look", "alert": "x"}]

    def asked() -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(PATIENCE)
            channel.connect(str(address))
            send_message(channel, {**keep, "argv": ["true"]})
            return receive_message(channel) or {}

    def answers() -> None:
        assert asked() == {"say": "cold", "why": "not a Python program"}

    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(address))
        send_message(channel, keep)
        pid, _, _ = array.array("i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    fuzz = Fuzz("zygote", seconds, [Watched("zygote", pid)])
    fuzz.run(lambda dice: no_leave(str(address), messages(dice, samples)), answers)


def no_leave(address: str, data: bytes) -> None:
    if b"leave" not in data:
        call(address, data)


SCRIPT = "import os, pathlib\npathlib.Path(os.environ['OUT'], os.environ['RANK']).touch()\n"


def launched(place: int, port: int, out: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start one of two launches that meet at a port, as torchrun's are started."""
    words = [LOOM, "launch", "--nnodes", "2", "--node-rank", str(place), "--nproc-per-node", "1"]
    words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    words += ["--rdzv-conf", "join_timeout=3600", "rank.py"]  # longer than any fuzzing
    with log.open("wb") as file:
        env = {**os.environ, "OUT": str(out)}
        return subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=env)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


@fuzzing.short_and_long
def test_strangers_who_send_any_bytes_to_a_launch_of_two_hosts_do_not_hinder_it(
    home: Path, tmp_path: Path, seconds: float
) -> None:
    Path("rank.py").write_text(SCRIPT)
    port, log = free_port(), tmp_path / "head.log"
    head = launched(0, port, tmp_path, log)
    until(lambda: accepts(port) or head.poll() is not None)
    samples: list[dict[str, Any]] = [
        {"say": "hello", "host": "n2", "challenge": "c", "process": {}, "ranks": [], "seat": "s"},
        {"say": "proof", "proof": "f" * 64},
        {"say": "ask"},
        {"say": "plane", "node": "n2", "key": "U" * 56, "challenge": "c"},
        {"say": "exited", "ranks": []},
        *(json.loads(text) for text in SENT[TO_SUPERVISOR]),
    ]

    def answers() -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as channel:
            challenge = receive_message(channel)
            assert challenge is not None
            assert challenge["do"] == "prove"

    def attempt(dice: Dice) -> None:
        data = messages(dice, samples) * dice.choice((1, 1, 1, 300))
        assert b"app_id" not in call(("127.0.0.1", port), data)

    Fuzz("launch link", seconds, [Watched("launch", head.pid)], [log]).run(attempt, answers)

    other = launched(1, port, tmp_path, tmp_path / "other.log")
    codes = (head.wait(90), other.wait(90))
    assert codes == (0, 0), log.read_text()
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}
