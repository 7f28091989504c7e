"""Bring a packed environment to many hosts: send as a tree, verify, unpack, move into place."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from torchloom.launch.envs.remote import (
    CLEAN,
    INSTALL,
    RECEIVE,
    SERVE,
    SERVED,
    Answer,
    Ssh,
)
from torchloom.launch.envs.tree import HERE, Copy, Tree

MOST = 128  # transfers and installations at one time
_HEARING = 0.2  # seconds: a Ctrl-C just before a wait is heard only when the wait ends


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
        copies: dict[Future[Answer], Copy] = {}
        installs: dict[Future[Answer], Copy] = {}

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
            for future in wait(running, _HEARING, return_when=FIRST_COMPLETED).done:
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

    def _send(self, copy: Copy) -> Answer:
        values = (self.dest, self.sha256, self.token)
        if copy.source == HERE:
            return self.ssh.run(self.ssh.command(copy.target, RECEIVE, *values), self.archive)
        inner = self.ssh.far_command(copy.target, RECEIVE, *values)
        serve = self.ssh.command(copy.source, SERVE, self.dest, self.token, *inner)
        answer = self.ssh.run(serve)
        head, found, code = answer.out.rpartition(SERVED)
        if answer.code or not found:
            return Answer(answer.code or 1, "", answer.err or "its source is gone")
        return Answer(int(code), head if int(code) == 0 else answer.out, answer.err)

    def _install(self, host: str) -> Answer:
        words = self.ssh.command(host, INSTALL, self.dest, self.sha256, self.token)
        return self.ssh.run(words)

    def _clean(self, host: str) -> Answer:
        """Remove the archive; a host that is gone keeps it, and the next push does not mind."""
        return self.ssh.run(self.ssh.command(host, CLEAN, self.dest, self.sha256, self.token))


def _verdict(answer: Answer, wanted: str) -> tuple[str, str]:
    good = answer.code == 0 and wanted in answer.out
    return (wanted, "") if good else ("failed", answer.error)
