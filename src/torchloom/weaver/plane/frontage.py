"""The plane's HTTP server: it comes after everybody else, and nobody waits for it in vain."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchloom.weaver.plane.parts import SERVER
from torchloom.weaver.plane.supervise import Child, Part, Supervisor

_LATER = 10.0  # seconds in which a job that has just begun needs the machine for itself
_MOST_ENDS = 3  # of a server that never answered: it will not


@dataclass(slots=True)
class Frontage:
    """When to start the server, where it answers, and what is wrong with it."""

    card: Path  # where the server says at which address it answers
    supervisor: Supervisor
    make: Callable[[], Part]
    clock: Callable[[], float] = time.monotonic
    due: float | None = None
    answered: bool = False

    def want(self, at_once: bool) -> None:
        """Have it started: at once, or when a job that begins now has begun."""
        due = self.clock() + (0.0 if at_once else _LATER)
        if self.child is None:
            self.due = due if self.due is None else min(self.due, due)

    def look(self) -> float | None:
        """Start it if it is time to; return in how many seconds to look again, if ever."""
        if self.due is None:
            return None
        left = self.due - self.clock()
        if left > 0:
            return left
        self.due = None
        self.supervisor.start(self.make())
        return None

    @property
    def child(self) -> Child | None:
        return self.supervisor.children.get(SERVER)

    def url(self) -> str:
        """Return where it answers; nothing while it does not."""
        child = self.child
        try:
            card = json.loads(self.card.read_text())
            if child is not None and child.pid is not None and card["pid"] == child.pid:
                self.answered = True
                return str(card["url"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not written yet, or half of it
        return ""

    def is_settled(self) -> bool:
        """Tell whether there is nothing to wait for: it answers, was not wanted, or never will."""
        return bool((self.due is None and self.child is None) or self.url() or self.trouble())

    def trouble(self) -> str:
        """Say why there is none, when it was tried often enough."""
        child = self.child
        if child is None or self.answered or child.ends < _MOST_ENDS:
            return ""
        words = child.part.last_words() or child.how
        return f"the HTTP server does not come up: {words}; see {child.part.log}"
