"""What the word under the cursor may become: words of the prompt, names that the plane knows."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torchloom.cli.monitor.prompt import Ask
from torchloom.cli.monitor.words import ALIASES, WORDS
from torchloom.errors import LoomError

_FRESH = 3.0  # seconds that names are believed
_PATIENCE = 2.0  # seconds for an answer: somebody waits with a finger on the key
_ACTS = ("fail", "recover", "drain", "register")


class Completer:
    """Looks names up when they are wanted, and remembers them for a moment."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, tuple[float, list[str]]] = {}

    def complete(self, line: str, job: str = "") -> list[str]:
        """Return what the last word of a line may become."""
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
        except LoomError:  # there is nothing to complete, and no place to say why
            known = []
        self._known[key] = time.monotonic(), known
        return known


def _other_job(before: list[str]) -> str:
    """Return the job that a line of `set` names."""
    return next((word for word in before[1:] if "=" not in word and word[:1] != "-"), "")
