"""Send a packed environment to many hosts as a tree, verify, unpack, move into place."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.envs.remote import CLEAN, INSTALL, RECEIVE, SERVE, SERVED, RemoteResult, Ssh

HERE = ""  # the machine that started it, a source like any other
_STRIKES = 2  # hosts that a source failed to serve and another served, before it is dropped
MOST = 128  # transfers and installations at one time
_POLL = 0.2  # seconds: a Ctrl-C just before a wait takes effect only when the wait ends


@dataclass(frozen=True, slots=True)
class Copy:
    """One transfer."""

    source: str
    target: str


class Tree:
    """Which hosts have it, wait, or are being served: call `ready`, then report each copy."""

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
        """Whether no host waits and nothing is under way."""
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


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one host."""

    host: str
    state: str  # ready, present (it was there already), failed
    source: str  # who served it; nothing for the machine that started it
    seconds: float
    error: str = ""


@dataclass
class Push:
    """One environment on its way to many hosts."""

    archive: Path
    sha256: str
    dest: str
    ssh: Ssh
    tell: Callable[[Delivery], None] = lambda delivery: None
    token: str = field(default_factory=lambda: secrets.token_hex(6))

    def run(self, hosts: Sequence[str], fanout: int) -> list[Delivery]:
        """Serve every host that can be reached; return how each fared, in the order given."""
        names = self._once(hosts)
        pool = ThreadPoolExecutor(min(MOST, max(1, len(names))))
        try:
            found = {each.host: each for each in self._deliver(names, fanout, pool)}
            list(pool.map(self._clean, names))
        finally:
            self.ssh.close()
            pool.shutdown(wait=True, cancel_futures=True)
        return [found[name] for name in names]

    def _once(self, hosts: Sequence[str]) -> list[str]:
        """Return each host once; this one has several names."""
        here = [host for host in hosts if self.ssh.is_here(host)]
        return [host for host in dict.fromkeys(hosts) if host not in here[1:] or host == here[0]]

    def _deliver(
        self, names: Sequence[str], fanout: int, pool: ThreadPoolExecutor
    ) -> Iterator[Delivery]:
        tree, started = Tree(names, fanout), time.monotonic()
        copies: dict[Future[RemoteResult], Copy] = {}
        installs: dict[Future[RemoteResult], Copy] = {}

        def over(copy: Copy, state: str, error: str = "") -> Delivery:
            seconds = round(time.monotonic() - started, 3)
            delivery = Delivery(copy.target, state, copy.source, seconds, error)
            self.tell(delivery)
            return delivery

        while True:
            copies |= {pool.submit(self._send, copy): copy for copy in tree.ready()}
            if not copies and not installs:
                return
            running = [*copies, *installs]
            for future in wait(running, _POLL, return_when=FIRST_COMPLETED).done:
                answer = future.result()
                if copy := installs.pop(future, None):
                    yield over(copy, *_verdict(answer, "ready"))
                    continue
                copy = copies.pop(future)
                if answer.code == 0 and "present" in answer.out:
                    tree.arrived(copy, serves=False)
                    yield over(copy, "present")
                elif answer.code == 0:
                    tree.arrived(copy)
                    installs[pool.submit(self._install, copy.target)] = copy
                else:
                    tree.failed(copy, answer.error, source_is_gone=SERVED not in answer.out)
                    if copy.target in tree.failures:
                        yield over(copy, "failed", answer.error)

    def _send(self, copy: Copy) -> RemoteResult:
        values = (self.dest, self.sha256, self.token)
        if copy.source == HERE:
            return self.ssh.run(self.ssh.command(copy.target, RECEIVE, *values), self.archive)
        inner = self.ssh.far_command(copy.target, RECEIVE, *values)
        serve = self.ssh.command(copy.source, SERVE, self.dest, self.token, *inner)
        answer = self.ssh.run(serve)
        head, found, code = answer.out.rpartition(SERVED)
        if answer.code or not found:
            return RemoteResult(answer.code or 1, "", answer.err or "its source is gone")
        return RemoteResult(int(code), head if int(code) == 0 else answer.out, answer.err)

    def _install(self, host: str) -> RemoteResult:
        words = self.ssh.command(host, INSTALL, self.dest, self.sha256, self.token)
        return self.ssh.run(words)

    def _clean(self, host: str) -> RemoteResult:
        """Remove the archive; a host that is gone keeps it, and the next push does not mind."""
        return self.ssh.run(self.ssh.command(host, CLEAN, self.dest, self.sha256, self.token))


def _verdict(answer: RemoteResult, wanted: str) -> tuple[str, str]:
    good = answer.code == 0 and wanted in answer.out
    return (wanted, "") if good else ("failed", answer.error)
