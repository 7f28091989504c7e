"""Completion and history of the prompt."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchloom.cli.monitor.prompt import ALIASES, WORDS, Ask
from torchloom.errors import LoomError
from torchloom.settings import loom_home

_MOST = 1000
_FRESH = 3.0  # seconds that names are cached
_PATIENCE = 2.0  # seconds for a reply: the user waits for the completion
_ACTS = ("fail", "recover", "drain", "register")


class History:
    """Earlier lines, oldest first. A file that cannot be read or written is ignored."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or loom_home() / "monitor_history"
        self.lines = self._read()

    def add(self, line: str) -> None:
        """Store a line, unless it repeats the last one."""
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


class Completer:
    """Completes lines; requests names from the plane and caches them for a few seconds."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, tuple[float, list[str]]] = {}

    def complete(self, line: str, job: str = "") -> list[str]:
        """Return the completions of the last word of a line."""
        *before, last = line.lstrip().removeprefix(":").lstrip().split(" ")
        words = [word for word in before if word]
        return [found for found in self._choices(words, last, job) if found.startswith(last)]

    def _choices(self, before: list[str], last: str, job: str) -> Sequence[str]:
        if not before:
            return [*WORDS, *(alias for alias in ALIASES if last and alias.isalpha())]
        name = ALIASES.get(before[0], before[0])
        if name not in WORDS:
            return ()
        word = WORDS[name]
        if last.startswith("-"):
            return word.flags
        if name == "devices":
            return _ACTS if len(before) == 1 else self._devices()
        kinds: dict[str, Callable[[], Sequence[str]]] = {
            "job": lambda: ["@", *self._jobs()],
            "knob": lambda: [*self._knobs(_other_job(before) or job), *self._jobs()],
            "device": self._devices,
            "word": lambda: list(WORDS),
        }
        return kinds[word.takes]() if word.takes else ()

    def _jobs(self) -> list[str]:
        return self._names("jobs", lambda jobs: [j["id"] for j in jobs], limit=200)

    def _knobs(self, job: str) -> list[str]:
        return self._names("knobs", lambda knobs: [f"{k['name']}=" for k in knobs], job=job)

    def _devices(self) -> list[str]:
        return self._names("devices", lambda found: [d["uuid"] for d in found["devices"]])

    def _names(self, question: str, names: Callable[[Any], list[str]], **facts: Any) -> list[str]:
        key = f"{question} {facts}"
        at, known = self._known.get(key, (0.0, []))
        if at and time.monotonic() - at < _FRESH:
            return known
        try:
            known = names(self._ask(question, _PATIENCE, **facts))
        except LoomError:  # nothing to complete, and no place for a message
            known = []
        self._known[key] = time.monotonic(), known
        return known


def _other_job(before: list[str]) -> str:
    """Return the job that a `set` line names."""
    return next((word for word in before[1:] if "=" not in word and word[:1] != "-"), "")
