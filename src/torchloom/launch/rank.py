"""One living rank: its process, what it prints, and where that goes."""

import contextlib
import os
import pty
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torchloom.launch.identity import ProcessId
from torchloom.launch.logfiles import LogFiles
from torchloom.launch.spawn import Outputs, spawn
from torchloom.rules.recovery import ReplicaKey

_CHUNK = 1 << 16


class Rank:
    """A started rank. Its outputs are read by whoever owns it, with `pump`."""

    def __init__(self, key: ReplicaKey, local_rank: int, log: LogFiles) -> None:
        self.key = key
        self.local_rank = local_rank
        self.log = log
        self.pid = 0
        self.process: ProcessId | None = None
        self.outputs: dict[int, str] = {}

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdin: int | None
    ) -> None:
        """Start the command with pipes for its outputs and the given (or no) standard input."""
        null = os.open(os.devnull, os.O_RDONLY)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            outputs = Outputs(null if stdin is None else stdin, out_write, err_write)
            self._started(spawn(argv, env, cwd, outputs))
        except OSError:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            for fd in (null, out_write, err_write):
                os.close(fd)
        self._watch({out_read: "stdout", err_read: "stderr"})

    def start_on_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        attach: Callable[[int], None],
    ) -> None:
        """Start the command on a terminal of its own, attached before it can look at it.

        What it prints there is its stdout.
        """
        master, slave = pty.openpty()
        attach(master)
        try:
            self._started(spawn(argv, env, cwd, Outputs(slave, slave, slave, terminal=True)))
        except OSError:
            os.close(master)
            raise
        finally:
            os.close(slave)
        self._watch({master: "stdout"})

    def pump(self, fd: int, copy: Callable[[bytes], None] | None = None) -> int | None:
        """Move what is there from one output to the log; return how much, nothing at its end."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal whose last user is gone
            return None
        if not data:
            return None
        self.log.write(self.outputs[fd], data)
        if copy is not None:
            copy(data)
        return len(data)

    def close(self, fd: int) -> None:
        """Let one output go."""
        del self.outputs[fd]
        os.close(fd)

    def send(self, signum: int) -> None:
        """Signal the rank and everything in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    @property
    def error_file(self) -> Path:
        return self.log.directory / "error.json"

    def _started(self, pid: int) -> None:
        self.pid = pid
        self.process = ProcessId.of(pid)

    def _watch(self, outputs: dict[int, str]) -> None:
        for fd in outputs:
            os.set_blocking(fd, False)
        self.outputs = outputs
