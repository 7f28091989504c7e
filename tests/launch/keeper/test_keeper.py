"""A keeper, driven over its socket as an agent does it: it has the ranks, whoever leaves."""

import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchloom.launch.host import sockets
from torchloom.launch.wire import Connection

from ...harness.home import until

pytestmark = pytest.mark.process

APP, NODE = f"app-{os.getpid()}", "here"
NOBODY = 65534
KEEP = """
import socket, sys
from pathlib import Path
from torchloom.launch.host.descendants import JobShare as Share
from torchloom.launch.keeper.service import Keeper

fd, app, node, address, limit = sys.argv[1:]
channel = socket.socket(fileno=int(fd))
channel.set_inheritable(False)
Keeper(Share(app, node), channel, Path(address), None, float(limit)).serve()
"""
SLEEP = ("sleep", "600")


class Agent:
    """The other end of a keeper."""

    def __init__(self, channel: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self.messages: list[tuple[Any, list[int]]] = []
        self.codes: dict[int, int] = {}
        self.is_gone = False
        self.connection = Connection(channel, self._selector, self._hear, self._end)

    def _hear(self, message: Any, fds: list[int]) -> None:
        self.messages.append((message, fds))

    def _end(self) -> None:
        self.is_gone = True

    def turn(self, until: Callable[[], Any]) -> Any:
        while not (found := until()):
            ready = self._selector.select(20)
            assert ready, f"nothing more came after {self.messages}"
            for key, what in ready:
                key.data(what)
        return found

    def hear(self, say: str) -> tuple[Any, list[int]]:
        """Return the next message of this kind, and forget it."""
        kind = lambda: [entry for entry in self.messages if entry[0]["say"] == say]  # noqa: E731
        entry: tuple[Any, list[int]] = self.turn(kind)[0]
        self.messages.remove(entry)
        return entry

    def code(self, number: int) -> int:
        """Return how a child ended."""
        while number not in self.codes:
            told = self.hear("exited")[0]["children"]
            self.codes |= {child["id"]: child["code"] for child in told}
        return self.codes[number]

    def start(
        self,
        number: int,
        argv: Sequence[str],
        kept: Sequence[int] = (),
        given: Sequence[int] = (),
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
    ) -> Any:
        """Order a process, with nothing to read or say but what is given; return the answer."""
        with open(os.devnull, "r+b") as null:
            own = [*given, *[null.fileno()] * (3 - len(given))]
            marked = {"LOOM_JOB": APP, "LOOM_NODE": NODE, "PATH": os.environ["PATH"]}
            order = {"do": "start", "id": number, "argv": list(argv), "cwd": cwd}
            order |= {"env": {**marked, **(env or {})}, "given": len(own), "note": {"n": number}}
            self.connection.send(order, [*own, *kept])
        return self.turn(lambda: self._answer(number))

    def _answer(self, number: int) -> Any:
        for entry in self.messages:
            if entry[0]["say"] in ("started", "failed") and entry[0]["id"] == number:
                self.messages.remove(entry)
                return entry[0]
        return None


class Keeper:
    """A keeper in a process of its own, and its first agent."""

    def __init__(self, address: Path, orphan_limit: float) -> None:
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), APP, NODE, str(address), str(orphan_limit)]
        self.address = address
        self.process = subprocess.Popen(
            [sys.executable, "-c", KEEP, *words], pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        self.agents = [Agent(ours)]
        self.agent.hear("hello")

    @property
    def agent(self) -> Agent:
        return self.agents[-1]

    def call(self) -> tuple[Agent, Any, list[int]]:
        """Call as another agent; return it and what it was told."""
        self.agents.append(Agent(sockets.connect(self.address)))
        return self.agent, *self.agent.hear("hello")

    def close(self) -> None:
        for agent in self.agents:
            agent.connection.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Keeper]]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made: list[Keeper] = []

    def make(orphan_limit: float = 60.0, address: Path | None = None) -> Keeper:
        made.append(Keeper(address or tmp_path / "keeper", orphan_limit))
        return made[-1]

    yield make
    for keeper in made:
        keeper.close()


@pytest.fixture
def keeper(keep: Callable[..., Keeper]) -> Keeper:
    return keep()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def number_in(path: Path) -> int:
    """Return the process number that a program wrote down, once it is whole."""
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def test_a_process_gets_its_descriptors_folder_and_variables_and_its_exit_is_told(
    keeper: Keeper, tmp_path: Path
) -> None:
    read_end, write_end = os.pipe()
    script = "import os; print(os.getcwd(), os.environ['A'], os.getsid(0) == os.getpid()); exit(3)"

    argv = (sys.executable, "-c", script)
    with open(os.devnull) as null:
        given = [null.fileno(), write_end]
        shown = keeper.agent.start(1, argv, [read_end], given, str(tmp_path), {"A": "b c"})
    os.close(write_end)
    code = keeper.agent.code(1)

    told = {"say": "started", "id": 1, "note": {"n": 1}, "code": None, "kept": 1, "cold": ""}
    assert shown == {**told, "pid": shown["pid"], "started": shown["started"]}
    assert os.read(read_end, 1000).decode() == f"{tmp_path} b c True\n"
    assert os.read(read_end, 1) == b""
    assert code == 3
    os.close(read_end)


@pytest.mark.parametrize(
    ("argv", "cwd", "number"),
    [
        (("no-such-program",), "/", errno.ENOENT),
        (("/",), "/", errno.EACCES),
        (SLEEP, "/no/such/folder", errno.ENOENT),
    ],
)
def test_what_cannot_start_is_said_and_the_next_can(
    argv: tuple[str, ...], cwd: str, number: int, keeper: Keeper
) -> None:
    failed = keeper.agent.start(1, argv, cwd=cwd)
    started = keeper.agent.start(2, ("true",))

    what = cwd if cwd != "/" else argv[0]
    assert failed == {"say": "failed", "id": 1, "errno": number, "what": what}
    assert started["say"] == "started"
    assert keeper.agent.code(2) == 0


def test_a_signal_reaches_the_rank_and_its_group(keeper: Keeper, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    shown = keeper.agent.start(1, ("sh", "-c", f"sleep 600 & echo $! > {note}; wait"))
    helper = number_in(note)

    keeper.agent.connection.send({"do": "signal", "id": 1, "signum": signal.SIGTERM})

    assert keeper.agent.code(1) == -signal.SIGTERM
    until(lambda: not alive(helper) and not alive(shown["pid"]))
    keeper.agent.connection.send({"do": "signal", "id": 1, "signum": signal.SIGTERM})
    keeper.agent.connection.send({"do": "signal", "id": 9, "signum": signal.SIGTERM})
    assert keeper.agent.start(2, ("true",))["say"] == "started"


def test_the_next_agent_gets_the_ranks_their_exits_and_their_outputs(keeper: Keeper) -> None:
    pipes = [os.pipe() for _ in range(3)]
    thens = ["exit 7", "kill -9 $$", "exec sleep 600"]
    first, pids = keeper.agent, []
    for number, (then, (read_end, write_end)) in enumerate(zip(thens, pipes, strict=True), 1):
        argv = ("sh", "-c", f"echo {number}; {then}")
        pids.append(first.start(number, argv, [read_end], [0, write_end])["pid"])
    codes = [first.code(1), first.code(2)]
    for ends in pipes:
        for fd in ends:
            os.close(fd)

    _, hello, kept = keeper.call()
    first.turn(lambda: first.is_gone)

    assert codes == [7, -9]
    assert [(each["id"], each["code"]) for each in hello["children"]] == [
        (1, 7),
        (2, -9),
        (3, None),
    ]
    assert [each["pid"] for each in hello["children"]] == pids
    assert [each["note"] for each in hello["children"]] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert hello["pid"] == keeper.process.pid
    assert [os.read(fd, 100) for fd in kept] == [b"1\n", b"2\n", b"3\n"]
    for fd in kept:
        os.close(fd)


def test_a_host_full_of_ranks_is_handed_on(keeper: Keeper) -> None:
    read_end, write_end = os.pipe()
    for number in range(70):
        keeper.agent.start(number, SLEEP, [read_end, read_end], [0, write_end, write_end])
    os.close(write_end)
    os.close(read_end)

    _, hello, kept = keeper.call()

    assert [each["kept"] for each in hello["children"]] == [2] * 70
    assert len(kept) == 140
    for fd in kept:
        os.close(fd)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_another_user_is_not_an_agent(keep: Callable[..., Keeper]) -> None:
    address = Path(f"/tmp/loom-test-keeper-{os.getpid()}")
    keeper = keep(address=address)
    address.chmod(0o666)
    try:
        call = (
            f"import socket; s = socket.socket(1); s.connect({str(address)!r}); print(s.recv(99))"
        )
        done = subprocess.run(
            ["/usr/bin/python3", "-c", call],
            user=NOBODY,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        address.unlink()

    assert (done.stdout, done.stderr) == ("b''\n", "")
    assert keeper.agent.start(1, ("true",))["say"] == "started"
    assert not keeper.agent.is_gone


def test_without_an_agent_the_ranks_live_for_the_orphan_limit(keep: Callable[..., Keeper]) -> None:
    keeper = keep(orphan_limit=0.6)
    pid = keeper.agent.start(1, SLEEP)["pid"]

    keeper.agent.connection.close()
    second, _, _ = keeper.call()
    lived = alive(pid)
    second.connection.close()
    left_at = time.monotonic()
    code = keeper.process.wait(20)

    assert lived
    assert time.monotonic() - left_at >= 0.6
    assert code == 0
    assert not alive(pid)
    assert not keeper.address.exists()


def test_burying_ends_what_a_rank_left_in_its_session_and_nothing_else(
    keeper: Keeper, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    keeper.agent.start(1, ("sh", "-c", f"sleep 600 & echo $! > {note}"))
    other = keeper.agent.start(2, SLEEP)["pid"]
    helper = number_in(note)
    assert keeper.agent.code(1) == 0
    assert alive(helper)

    keeper.agent.connection.send({"do": "bury", "id": 1})

    until(lambda: not alive(helper))
    assert alive(other)
    _, hello, _ = keeper.call()
    assert [each["id"] for each in hello["children"]] == [2]


def test_sweeping_finds_what_hid_from_the_rank(keeper: Keeper, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    hide = f"setsid env -i /bin/sh -c 'echo $$ > {note}; exec sleep 600' & exec sleep 600"
    keeper.agent.start(1, ("sh", "-c", hide))
    hidden = number_in(note)

    keeper.agent.connection.send({"do": "sweep", "signum": 0})
    before = keeper.agent.hear("left")[0]["count"]
    keeper.agent.connection.send({"do": "sweep", "signum": signal.SIGTERM})
    keeper.agent.hear("left")
    until(lambda: not alive(hidden))
    keeper.agent.code(1)
    keeper.agent.connection.send({"do": "sweep", "signum": 0})

    assert before == 2
    assert keeper.agent.hear("left")[0] == {"say": "left", "count": 0}


def test_told_to_end_it_leaves_nothing_and_tells_the_exits(keeper: Keeper, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    hide = f"trap '' TERM; setsid sh -c 'echo $$ > {note}; exec sleep 600' & exec sleep 600"
    keeper.agent.start(1, ("sh", "-c", hide))
    hidden = number_in(note)

    keeper.agent.connection.send({"do": "end"})

    assert keeper.agent.code(1) == -signal.SIGKILL
    keeper.agent.turn(lambda: keeper.agent.is_gone)
    assert keeper.process.wait(20) == 0
    assert not alive(hidden)
    assert not keeper.address.exists()


def test_the_kernel_ends_the_ranks_of_a_killed_keeper(keeper: Keeper) -> None:
    pids = [keeper.agent.start(number, SLEEP)["pid"] for number in (1, 2)]

    keeper.process.kill()
    keeper.process.wait()

    until(lambda: not any(map(alive, pids)))
