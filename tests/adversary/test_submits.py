"""A plane that is held, killed or gone between storing a job and answering: there is one job."""

import contextlib
import json
import os
import random
import shlex
import signal
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.client.plane import door
from torchloom.unix import reachable, receive_message, send_message

from ..control.conftest import living
from ..harness.fresh_databases import fresh
from ..harness.home import until
from ..harness.plane_jobs import LOOM, PATIENCE, Plane, loom

pytestmark = pytest.mark.process

SPEC = """
name: once
script: note.py
resources: {workers: 1}
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Give the module a plane of its own; nothing of it is left behind."""
    folder = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in (("HOME", "home"), ("LOOM_HOME", "loom"), ("XDG_RUNTIME_DIR", "run")):
            (folder / name).mkdir(mode=0o700)
            patch.setenv(variable, str(folder / name))
        for variable in ("LOOM_PLANE", "LOOM_JOB", "LOOM_AGENT_OF", "LOOMCONFIG", "TORCHXCONFIG"):
            patch.delenv(variable, raising=False)
        patch.setenv("LOOM_DEVICES", "cpu:4")
        (folder / "work").mkdir()
        (folder / "work" / "note.py").write_text("print('here')\n")
        (folder / "work" / "job.yaml").write_text(SPEC)
        patch.chdir(folder / "work")
        fresh(folder / "loom" / "plane")
        loom("up")
        yield Plane()
        until(lambda: not jobs("where state not in ('COMPLETED', 'FAILED', 'CANCELLED')"), PATIENCE)
        loom("down")  # a job that is just being started would start a plane
        until(lambda: not living(folder), PATIENCE)


def submissions() -> list[tuple[str, str]]:
    """Return every job that was ever stored and its key, by the database alone."""
    path = Path(os.environ["LOOM_HOME"], "plane", "state.db")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        return base.execute("select job, key from submissions order by number").fetchall()


def jobs(which: str = "") -> list[str]:
    path = Path(os.environ["LOOM_HOME"], "plane", "state.db")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        return [row[0] for row in base.execute(f"select id from jobs {which}")]


class Command:
    """A command line that runs, and what it has printed on stderr so far."""

    def __init__(self, *words: str) -> None:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            [LOOM, *words], stdin=subprocess.DEVNULL, text=True, **pipes
        )
        self.said: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def has_said(self, words: str) -> bool:
        assert self.process.poll() is None or words in "".join(self.said), "".join(self.said)
        return words in "".join(self.said)

    def ends(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE)
        self._reading.join()
        return code, out


def is_one(command: Command, before: list[tuple[str, str]]) -> str:
    """Check that a command ended with a job, and that this is all that was stored."""
    code, out = command.ends()
    assert code == 0, "".join(command.said)
    new = [row for row in submissions() if row not in before]
    name: str = json.loads(out)["id"]
    assert [row[0] for row in new] == [name]
    assert [job for job in jobs() if job not in {row[0] for row in before}] == [name]
    return name


@contextlib.contextmanager
def withholding(ask: str, then: Callable[[], object]) -> Iterator[None]:
    """Stand between clients and the weaver; keep its first answer to a question, and do something.

    The weaver has done what it was asked for, and its client will never hear it.
    """
    path = door()
    behind = path.with_name("behind.sock")
    path.rename(behind)
    done = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        with reachable(path) as address:
            listener.bind(address)
        listener.listen(16)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while not done.is_set():
                    client, _ = listener.accept()
                    with client:
                        pass_on(client)

        def pass_on(client: socket.socket) -> None:
            question = receive_message(client)
            if question is None:
                return
            with socket.socket(socket.AF_UNIX) as weaver:
                with reachable(behind) as address:
                    weaver.connect(address)
                send_message(weaver, question)
                answer = receive_message(weaver)
            if question["ask"] == ask:
                done.set()
                listener.close()
                then()
            elif answer is not None:
                send_message(client, answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        assert done.is_set()


def test_a_weaver_killed_after_it_stored_a_job_has_stored_one(plane: Plane) -> None:
    before, weaver = submissions(), plane.pid("weaver")

    with withholding("submit", lambda: os.kill(weaver, signal.SIGKILL)):
        command = Command("run", "--json", "job.yaml")
        is_one(command, before)

    assert "still waiting" in "".join(command.said)


def test_a_plane_killed_after_it_stored_a_job_is_started_again_and_asked(plane: Plane) -> None:
    before, pid = submissions(), json.loads(loom("up", "--status", "--json"))["pid"]

    with withholding("submit", lambda: os.kill(pid, signal.SIGKILL)):
        is_one(Command("run", "--json", "job.yaml"), before)

    assert json.loads(loom("up", "--status", "--json"))["pid"] != pid


def test_kills_at_random_moments_leave_one_job_each(plane: Plane) -> None:
    _kills(plane, 2, random.Random(7))


@pytest.mark.soak
def test_many_kills_at_random_moments_leave_one_job_each(plane: Plane) -> None:
    _kills(plane, 60, random.Random())


def _kills(plane: Plane, times: int, chance: random.Random) -> None:
    """Kill the weaver a random moment after its database was written to, or at once."""
    path = Path(os.environ["LOOM_HOME"], "plane", "state.db-wal")

    def until_written(command: Command, seen: int) -> None:
        until(lambda: path.stat().st_mtime_ns != seen or command.process.poll() == 0)

    for _ in range(times):
        until(plane.is_whole, PATIENCE)
        before, weaver, seen = submissions(), plane.pid("weaver"), path.stat().st_mtime_ns
        command = Command("run", "--json", "job.yaml")
        until_written(command, seen)
        threading.Event().wait(chance.choice((0, 0, 0.001, 0.005)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(weaver, signal.SIGKILL)
        is_one(command, before)


def test_a_weaver_that_is_held_is_waited_for_aloud(plane: Plane) -> None:
    before = submissions()
    until(plane.is_whole, PATIENCE)
    weaver = plane.kill("weaver", signal.SIGSTOP)
    try:
        command = Command("run", "--json", "job.yaml")
        until(lambda: command.has_said("still waiting"), PATIENCE)
        assert submissions() == before
    finally:
        os.kill(weaver, signal.SIGCONT)

    is_one(command, before)


@pytest.mark.parametrize("words", [("-d",), ()], ids=["detached", "followed"])
def test_interrupted_it_prints_the_command_that_is_safe_to_repeat(
    words: tuple[str, ...], plane: Plane
) -> None:
    before = submissions()
    until(plane.is_whole, PATIENCE)
    weaver = plane.kill("weaver", signal.SIGSTOP)
    try:
        command = Command("run", *words, "-e", "NOTE=it's", "job.yaml")
        until(lambda: command.has_said("still waiting"), PATIENCE)
        command.process.send_signal(signal.SIGINT)
        code, _ = command.ends()
    finally:
        os.kill(weaver, signal.SIGCONT)
    until(lambda: len(submissions()) == len(before) + 1, PATIENCE)  # it was taken after all

    assert code == 130
    assert "safe to repeat" in "".join(command.said)
    again = shlex.split(command.said[-1])
    assert again[:3] == ["loom", "run", "--key"]
    assert again[4:] == [*words, "-e", "NOTE=it's", "job.yaml"]
    for _ in range(2):
        loom(*again[1:])
    new = [row for row in submissions() if row not in before]
    assert [key for _, key in new] == [again[3]]


def test_a_repeated_key_returns_the_same_job_and_another_job_is_refused(plane: Plane) -> None:
    before = submissions()
    words = ("run", "--json", "--key", "night 7", "job.yaml")

    first, second = (json.loads(loom(*words))["id"] for _ in range(2))
    other = Command("run", "--json", "--key", "night 7", "--name", "other", "job.yaml")

    assert first == second
    assert other.ends()[0] == 2
    assert "another one; choose a new key" in "".join(other.said)
    assert [row for row in submissions() if row not in before] == [(first, "night 7")]


def test_a_key_is_refused_where_nothing_is_submitted(plane: Plane) -> None:
    command = Command("run", "--key", "k", "note.py")

    assert command.ends()[0] == 2
    assert "--key is only for queued jobs" in "".join(command.said)


def test_a_queued_job_whose_cancel_was_lost_is_cancelled(plane: Plane) -> None:
    spec = SPEC.replace("workers: 1", "workers: 4").replace("note.py", "hold.py")
    Path("hold.py").write_text("import time\nwhile True: time.sleep(0.1)\n")
    Path("big.yaml").write_text(spec)
    first, second = (json.loads(loom("run", "--json", "big.yaml"))["id"] for _ in range(2))
    try:
        weaver = plane.pid("weaver")
        with withholding("cancel_many", lambda: os.kill(weaver, signal.SIGKILL)):
            command = Command("stop", second)
            code, out = command.ends()
    finally:
        until(plane.is_whole, PATIENCE)
        loom("stop", "--now", first)

    assert (code, out) == (0, f"{second} CANCELLED\n"), "".join(command.said)
