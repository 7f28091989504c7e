"""A task on a host of the job, as the command that starts it sees it."""

import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from .wire import Address, connect, receive, send

CHUNK = 1 << 16


class NoTask(Exception):
    """The host did not start it."""


class Task:
    """A task that was started; its output is the job's, or comes here when it is `tied`."""

    def __init__(
        self,
        address: Address,
        key: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        extra: Mapping[str, str],
        cwd: str = "",
        tied: bool = False,
    ) -> None:
        self._threads: list[threading.Thread] = []
        tokens = [self._stream(address, number) for number in range(3)] if tied else []
        self._line = connect(address)
        self._line.settimeout(None)
        request: dict[str, Any] = {"op": "task", "job": key, "argv": list(argv), "cwd": cwd}
        request |= {"env": env if env is None else dict(env), "extra": dict(extra)}
        send(self._line, {**request, "tied": tied, "stdio": tokens})
        answer = receive(self._line) or {"error": "the host hung up"}
        if "error" in answer:
            raise NoTask(answer["error"])

    def wait(self) -> int:
        """Return the exit code, or minus the signal that ended it, when all its output is here."""
        answer = receive(self._line) or {"exit": -signal.SIGKILL}  # its host is gone
        for thread in self._threads:
            thread.join()
        status: int = answer["exit"]
        return status

    def signal(self, name: str) -> None:
        """Pass a signal on."""
        send(self._line, {"signal": name})

    def _stream(self, address: Address, number: int) -> str:
        """Open a line for the task's stdin, stdout or stderr."""
        token = uuid.uuid4().hex
        line = connect(address)
        line.settimeout(None)
        send(line, {"op": "stdio", "token": token})
        receive(line)
        if number:
            thread = threading.Thread(target=_copy_out, args=(line, number), daemon=True)
            self._threads.append(thread)
        else:
            thread = threading.Thread(target=_copy_in, args=(line,), daemon=True)
        thread.start()
        return token


def _copy_out(line: socket.socket, number: int) -> None:
    while data := line.recv(CHUNK):
        os.write(number, data)


def _copy_in(line: socket.socket) -> None:
    try:
        while data := os.read(sys.stdin.fileno(), CHUNK):
            line.sendall(data)
        line.shutdown(socket.SHUT_WR)
    except OSError:  # the task is gone
        pass
