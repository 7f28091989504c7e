"""Decide who sends to whom: hosts that have the file serve the next. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HERE = ""  # the machine that started it, a source like any other
_STRIKES = 2  # hosts a source failed to serve that others then could, before it is left alone


@dataclass(frozen=True, slots=True)
class Copy:
    """One transfer."""

    source: str
    target: str


class Tree:
    """Who has it, who waits, who is being served: ask `ready`, tell how each copy went."""

    def __init__(self, hosts: Sequence[str], fanout: int) -> None:
        self._fanout = fanout
        self._waiting = list(dict.fromkeys(hosts))
        self._active: dict[str, int] = {HERE: 0}
        self._retired: set[str] = set()
        self._failed_from: dict[str, str] = {}  # target: the source that could not serve it
        self._strikes: dict[str, int] = {}
        self.failures: dict[str, str] = {}

    def ready(self) -> list[Copy]:
        """Return the copies that may start now; they count as started."""
        started = []
        for target in list(self._waiting):
            source = self._source_for(target)
            if source is not None:
                self._waiting.remove(target)
                self._active[source] += 1
                started.append(Copy(source, target))
        return started

    def arrived(self, copy: Copy, serves: bool = True) -> None:
        """Note that a host has it; from now on it may serve others."""
        self._active[copy.source] -= 1
        if serves:
            self._active.setdefault(copy.target, 0)
        blamed = self._failed_from.pop(copy.target, HERE)
        if blamed != HERE and blamed != copy.source:
            self._strikes[blamed] = self._strikes.get(blamed, 0) + 1
            if self._strikes[blamed] >= _STRIKES:
                self._retired.add(blamed)

    def failed(self, copy: Copy, error: str, source_is_gone: bool = False) -> None:
        """Note that a copy went wrong: another source tries, and what fails from here is final."""
        self._active[copy.source] -= 1
        if copy.source == HERE:
            self.failures[copy.target] = error
            return
        if source_is_gone:
            self._retired.add(copy.source)
        else:
            self._failed_from[copy.target] = copy.source
        self._waiting.insert(0, copy.target)

    @property
    def is_done(self) -> bool:
        """Whether nobody waits and nothing is under way."""
        return not self._waiting and not any(self._active.values())

    def _source_for(self, target: str) -> str | None:
        """Return the least busy source; a host that a peer could not serve is served from here."""
        if target in self._failed_from:
            return HERE if self._active[HERE] < self._fanout else None
        free = [
            source
            for source, count in self._active.items()
            if count < self._fanout and source not in self._retired
        ]
        return min(free, key=lambda source: self._active[source], default=None)


def rounds(hosts: Sequence[str], fanout: int) -> Iterator[list[Copy]]:
    """Yield what would be sent in which order if every copy took the same time."""
    tree = Tree(hosts, fanout)
    while copies := tree.ready():
        yield copies
        for copy in copies:
            tree.arrived(copy)


def render(hosts: Sequence[str], fanout: int) -> str:
    """Return the tree as indented lines."""
    children: dict[str, list[str]] = {}
    for copies in rounds(hosts, fanout):
        for copy in copies:
            children.setdefault(copy.source, []).append(copy.target)
    lines = ["here"]
    stack = [(name, 1) for name in reversed(children.get(HERE, []))]
    while stack:
        name, depth = stack.pop()
        lines.append("  " * depth + name)
        stack += [(child, depth + 1) for child in reversed(children.get(name, []))]
    return "\n".join(lines)
