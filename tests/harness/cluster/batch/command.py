"""What every command of a fake does first: find the queue's daemon, and stop where it is not."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .job import Job, job_of
from .wire import Message, call


class Refused(Exception):
    """What a command says on stderr, and how it exits."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class Client:
    """The queue's daemon, as commands see it."""

    def __init__(self, folder: Path) -> None:
        self.site: dict[str, Any] = json.loads((folder / "site.json").read_text())
        self._port = folder / "port"

    def ask(self, op: str, **request: Any) -> Message:
        """Ask the daemon; OSError where it is out of reach."""
        address = (self.site["bind"], int(self._port.read_text()))
        return call(address, {"op": op, **request})

    def jobs(self) -> list[Job]:
        """Return all jobs, the oldest first."""
        return [job_of(record) for record in self.ask("list")["jobs"]]


def run(folder: str, command: Callable[[Client, list[str]], int]) -> int:
    """Run a command with the words of the shell; return its exit code."""
    try:
        return command(Client(Path(folder)), sys.argv[1:])
    except Refused as refused:
        sys.stderr.write(refused.text)
        return refused.code
