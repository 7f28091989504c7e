"""Write what a rank prints: each stream, both together, and when what was written."""

import os
import time
from pathlib import Path

STREAMS = ("stdout", "stderr")
_STAMP_EVERY = 0.1  # seconds; `since` and `until` are right to this
_LONGEST_LINE = 65536  # a partial line longer than this goes to combined.log as it is


class LogFiles:
    """The log folder of one rank. A full disk costs log bytes, counted, and never the rank."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lost = 0
        self._files: dict[str, int] = {}
        self._partial = dict.fromkeys(STREAMS, b"")
        self._stamped = 0.0

    def write(self, stream: str, data: bytes) -> None:
        """Append what a stream brought; combined.log gets it by whole lines."""
        self._stamp()
        self._append(f"{stream}.log", data)
        whole, newline, partial = (self._partial[stream] + data).rpartition(b"\n")
        if len(partial) > _LONGEST_LINE:
            whole, newline, partial = whole + newline + partial, b"", b""
        self._partial[stream] = partial
        if whole or newline:
            self._append("combined.log", whole + newline)

    def close(self) -> None:
        """Write unfinished lines and let the files go."""
        for stream, partial in self._partial.items():
            if partial:
                self._append("combined.log", partial)
                self._partial[stream] = b""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _stamp(self) -> None:
        now = time.time()
        if now - self._stamped >= _STAMP_EVERY:
            self._stamped = now
            sizes = " ".join(str(self._size(f"{name}.log")) for name in (*STREAMS, "combined"))
            self._append("times", f"{now:.3f} {sizes}\n".encode())

    def _size(self, name: str) -> int:
        try:
            return os.stat(self.directory / name).st_size
        except OSError:
            return 0

    def _append(self, name: str, data: bytes) -> None:
        try:
            fd = self._open(name)
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            if name.removesuffix(".log") in STREAMS:  # combined.log has the same bytes again
                self.lost += len(data)

    def _open(self, name: str) -> int:
        if name not in self._files:
            self.directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._files[name] = os.open(self.directory / name, flags, 0o600)
        return self._files[name]
