"""The lines that were typed at the prompt, kept over its lives in a file of this user."""

import contextlib
import os
from pathlib import Path

from torchloom.settings import loom_home

_MOST = 1000


class History:
    """Lines, oldest first. A file that cannot be read or written is no reason to stop."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or loom_home() / "monitor_history"
        self.lines = self._read()

    def add(self, line: str) -> None:
        """Keep a line, unless it is the last one again."""
        line = line.strip()
        if not line or self.lines[-1:] == [line]:
            return
        self.lines.append(line)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with open(os.open(self._path, flags, 0o600), "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _read(self) -> list[str]:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        lines = text.splitlines()
        if len(lines) > 2 * _MOST:
            self._shorten(lines)
        return lines[-_MOST:]

    def _shorten(self, lines: list[str]) -> None:
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.writelines(f"{line}\n" for line in lines[-_MOST:])
            partial.replace(self._path)
