"""Send what a rank prints to the launch process, where its host does not see the log folder."""

from collections.abc import Callable
from pathlib import Path

from torchloom.launch.frames import Message

MOST_UNSENT = 4 << 20  # bytes on their way to the launch process before the ranks must wait


class ForwardedLog:
    """The log of one rank, written elsewhere; its error file is kept here until it is sent too."""

    def __init__(self, directory: Path, logs: str, send: Callable[[Message], None]) -> None:
        self.directory = directory
        self.lost = 0
        self._logs = logs
        self._send = send

    def write(self, stream: str, data: bytes) -> None:
        text = data.decode("latin-1")  # any bytes survive, one character each
        self._send({"say": "output", "logs": self._logs, "stream": stream, "data": text})

    def close(self) -> None:
        self._send({"say": "output_end", "logs": self._logs})
