"""Show what a rank prints where its agent was started, as torchrun shows its own host's ranks."""

import contextlib
import os

from torchloom.launch.rank import Log


class ShownLog:
    """A rank's log that is printed as well, by whole lines behind a prefix or as it comes."""

    def __init__(self, log: Log, prefix: str) -> None:
        self.directory = log.directory
        self._log = log
        self._prefix = prefix.encode()
        self._partial = {"stdout": b"", "stderr": b""}

    @property
    def lost(self) -> int:
        return self._log.lost

    def write(self, stream: str, data: bytes) -> None:
        self._log.write(stream, data)
        if not self._prefix:
            self._print(stream, data)
            return
        whole, newline, self._partial[stream] = (self._partial[stream] + data).rpartition(b"\n")
        lines = (whole + newline).splitlines(keepends=True)
        self._print(stream, b"".join(self._prefix + line for line in lines))

    def close(self) -> None:
        for stream, rest in self._partial.items():
            if rest:
                self._print(stream, self._prefix + rest + b"\n")
                self._partial[stream] = b""
        self._log.close()

    def _print(self, stream: str, data: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody looks any more: the log has it
            while data:
                data = data[os.write(1 if stream == "stdout" else 2, data) :]
