"""Run one program three ways: by plain python, by the cold entry, as a fork of a real zygote."""

import contextlib
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.launch.host.identity import host_name
from torchloom.launch.keeper import zygote_client
from torchloom.launch.keeper.python_command import PythonCommand
from torchloom.launch.protocol import KeeperRequest
from torchloom.launch.wire import Connection, WireMessage

SCRIPTS = Path(__file__).parent / "scripts"
START = Path(zygote_client.__file__).parents[2] / "worker" / "start.py"
PATIENCE = 120.0  # seconds, for torch to be imported on a busy machine
FEW = {"LANG": "C.UTF-8", "LOOM_WARM_IDLE": "60", "SOME": "thing = ä\n"}
SET_FLAGS = ("-u", "-W", "always::FutureWarning", "-X", "faulthandler")
SET_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "2",
    "PYTHONHASHSEED": "11",
    "PYTHONWARNINGS": "ignore::DeprecationWarning",
    "TORCH_LOGS": "c10d",
}


def base() -> dict[str, str]:
    """Return a small environment, the same for all ways to run a program."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **FEW}


@dataclass(frozen=True)
class Outcome:
    """What anybody sees of a program that has ended."""

    code: int
    stdout: str
    stderr: str


class Process:
    """A program run by an interpreter of its own."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], stdin: str, cwd: Path) -> None:
        self._stdin = stdin
        self._process = subprocess.Popen(
            words,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def outcome(self) -> Outcome:
        with self._process as process:
            out, err = process.communicate(self._stdin, timeout=PATIENCE)
            return Outcome(process.returncode, out, err)


class Ranks:
    """A keeper forked from a zygote, and this test as its agent."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.env = dict(env)
        self.command = _command(words)
        found = zygote_client.find(self.command, env, str(SCRIPTS))
        assert isinstance(found, zygote_client.ZygoteClient), found
        self.zygote = found
        self.zygote.start()
        assert self.zygote.ready(PATIENCE), self.zygote.excuse()
        self._heard: list[WireMessage] = []
        self._number = self.last = 0
        self._selector = selectors.DefaultSelector()
        self._connection = self._keeper(folder)
        self.keeper_pid = self._wait("hello")["pid"]

    def _keeper(self, folder: Path) -> Connection:
        request = KeeperRequest(
            job="parity",
            node=host_name(),
            address=str(folder / "keeper.sock"),
            orphan_limit=PATIENCE,
            argv=tuple(self.command.argv),
            env=self.env,
            cwd=str(SCRIPTS),
        )
        channel = self.zygote.keeper(request)
        assert not isinstance(channel, zygote_client.Cold), channel
        return Connection(channel, self._selector, self._hear, lambda: None)

    def run(
        self, words: Sequence[str], env: Mapping[str, str], stdin: str = "", cwd: Path = SCRIPTS
    ) -> Outcome:
        """Return how the program ended."""
        number, ends = self.start(words, env, cwd)
        self.last = number
        with open(ends[0], "w") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(stdin)
        code = self.exit_code(number)
        texts = []
        for fd in ends[1:]:
            with open(fd) as pipe:
                texts.append(pipe.read())
        return Outcome(code, *texts)

    def start(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path = SCRIPTS
    ) -> tuple[int, list[int]]:
        """Order a rank; return its number and our ends of its pipes."""
        self._number += 1
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        order = {"do": "start", "id": self._number, "argv": list(words), "env": dict(env)}
        self._connection.send({**order, "cwd": str(cwd), "given": 3, "warm": True}, theirs)
        for fd in theirs:
            os.close(fd)
        return self._number, [pipes[0][1], pipes[1][0], pipes[2][0]]

    def pid(self, number: int) -> int:
        """Return the process of a rank, as soon as it is there."""
        return int(self._wait("started", number)["pid"])

    def cold(self, number: int) -> str:
        """Return why a rank was executed, as the keeper has it; nothing for a fork."""
        return str(self._wait("started", number)["cold"])

    def exit_code(self, number: int) -> int:
        """Wait for a rank's end."""
        return int(self._wait("exited", number)["code"])

    def close(self, and_zygote: bool = True) -> None:
        """End the keeper with all it has, and the zygote if nobody else uses it."""
        self._connection.send({"do": "end"})
        self._connection.finish()
        self._selector.close()
        if and_zygote:
            self.zygote.leave()

    def _hear(self, message: WireMessage, _fds: list[int]) -> None:
        items = message["children"] if message["say"] == "exited" else [message]
        self._heard.extend({**item, "say": message["say"]} for item in items)

    def _wait(self, what: str, number: int | None = None) -> WireMessage:
        while True:
            for message in self._heard:
                if message["say"] == what and message.get("id") == number:
                    return message
            ready = self._selector.select(PATIENCE)
            assert ready, f"no {what} from the keeper"
            for key, events in ready:
                key.data(events)


def cold_words(words: Sequence[str]) -> list[str]:
    """Return what a cold rank of this command executes."""
    return list(_command(words).through(str(START)))


def _command(words: Sequence[str]) -> PythonCommand:
    command = PythonCommand.parse(words)
    assert command is not None
    return command


def parent_of(pid: int) -> int:
    """Return a process's parent, from the kernel."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def zygotes(key: str) -> list[int]:
    """Return the processes that were executed as the zygote with this key, keepers left out."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words: Any = (entry / "cmdline").read_bytes()
                if b"torchloom.worker.process.zygote" in words and key.encode() in words:
                    found.append(int(entry.name))
    return found
