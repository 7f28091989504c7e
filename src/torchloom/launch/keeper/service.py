"""The parent of a job's ranks on one host: forks, reaps, remembers exits, and does nothing else.

It has one thread and no network. Agents come and go: a new one is sent which processes run, how the
others ended, and the ends of their outputs. Without an agent for `orphan_limit` the keeper ends its
ranks; without the keeper the kernel does.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.launch.host import descendants, sockets
from torchloom.launch.host.descendants import JobShare, become_subreaper
from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.host.sockets import SignalPipe
from torchloom.launch.keeper.spawn import SpawnOrder, Verdict, WarmForks, fork_warm, spawn
from torchloom.launch.protocol import (
    TO_KEEPER,
    BuryChild,
    ChildExit,
    ChildFailed,
    ChildrenExited,
    ChildrenLeft,
    ChildReport,
    ChildStarted,
    EndKeeper,
    KeeperHello,
    LaunchMessage,
    SignalChild,
    SpawnRequest,
    SweepJob,
    decoding,
)
from torchloom.launch.wire import BadFrame, Connection
from torchloom.unix import same_user

_SIGNALS = {0, *signal.valid_signals()}


@dataclass(slots=True)
class KeptProcess:
    """One started process: what the agent wants remembered of it, and how it ended."""

    number: int
    note: Any
    process: ProcessIdentity | None
    pid: int
    kept: list[int] = field(default_factory=list)
    code: int | None = None
    cold: str = ""  # why it was executed though the keeper could fork it

    def report(self) -> ChildReport:
        return ChildReport(**self.facts())

    def facts(self) -> dict[str, Any]:
        """Return the fields of a ChildReport, for it and for what is made of it."""
        return {
            "number": self.number,
            "note": self.note,
            "pid": self.pid,
            "started": self.process.started if self.process else "",
            "code": self.code,
            "kept": len(self.kept),
            "cold_reason": self.cold,
        }


class Keeper:
    """The processes of one job on this host. `agent` is the first agent's connection; later ones
    call at `address`. With `forks`, orders may be warm."""

    def __init__(
        self,
        share: JobShare,
        agent: socket.socket,
        address: Path,
        forks: WarmForks | None,
        orphan_limit: float,
    ) -> None:
        become_subreaper()
        self._share = share
        self._address = address
        self._listener = sockets.listen(address)
        self._forks = forks
        self._initialising: list[tuple[KeptProcess, SpawnOrder, Verdict]] = []
        self._is_looking = False  # ahead of the orders that an exit may lead to
        self._orphan_limit = orphan_limit
        self._orphaned_at: float | None = None
        self._children: dict[int, KeptProcess] = {}
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        self._selector.register(self._signals.fileno(), selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._listener, selectors.EVENT_READ, self._on_caller)
        self._agent = self._connected(agent)

    def serve(self) -> None:
        """Keep the ranks until an order to end, or too long without an agent."""
        self._agent.send(self._hello())
        while not self._ended:
            waiting = len(self._initialising)
            is_idle = not waiting and not self._is_looking
            for key, ready in self._selector.select(self._patience() if is_idle else 0.0):
                key.data(ready)
            if len(self._initialising) == waiting:  # what was ordered together is forked by now
                self._give_verdicts()
            if self._is_looking and self._forks is not None:
                self._is_looking = self._forks.look_ahead()
            if self._patience() == 0.0:
                self._end()
                self._clear_up()
        self._address.unlink(missing_ok=True)
        self._agent.finish()

    def _clear_up(self) -> None:
        """Remove what those who are all gone could not."""
        from torchloom.launch.agent import stores

        stores.clear(self._share)
        sockets.launch_address(self._share.app_id).unlink(missing_ok=True)

    def _patience(self) -> float | None:
        if self._orphaned_at is None:
            return None
        return max(0.0, self._orphaned_at + self._orphan_limit - time.monotonic())

    # Agents.

    def _on_caller(self, _ready: int) -> None:
        """Take a new agent; the one before is gone, or about to learn that it is not needed."""
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return
        if not same_user(channel):
            channel.close()
            return
        self._give_verdicts()
        self._agent.close()
        self._orphaned_at = None
        self._agent = self._connected(channel)
        kept = [fd for child in self._children.values() for fd in child.kept]
        self._agent.send(self._hello(), kept)

    def _connected(self, channel: socket.socket) -> Connection:
        handle = decoding(TO_KEEPER, self._on_message)
        return Connection(channel, self._selector, handle, self._on_agent_gone)

    def _hello(self) -> KeeperHello:
        children = tuple(child.report() for child in self._children.values())
        return KeeperHello(os.getpid(), children, warm=self._forks is not None)

    def _on_agent_gone(self) -> None:
        self._orphaned_at = time.monotonic()

    def _on_message(self, message: LaunchMessage, fds: list[int]) -> None:
        if not isinstance(message, SpawnRequest):
            _close(fds)
            fds.clear()
        match message:
            case SpawnRequest():
                self._start(message, fds)
            case SignalChild():
                self._signal(self._children.get(message.number), _signal_of(message))
            case BuryChild():
                self._bury(message.number)
            case SweepJob():
                self._sweep(_signal_of(message))
            case EndKeeper():
                self._end()

    # Processes.

    def _start(self, message: SpawnRequest, fds: list[int]) -> None:
        number = message.number
        given, kept = fds[: message.given], fds[message.given :]
        order, forks = _order(message, given), self._forks
        try:
            if order.warm and forks is not None:
                pid, verdict = fork_warm(order, forks)
            else:
                pid, verdict = spawn(order), None
        except OSError as error:
            _close(kept)
            self._agent.send(ChildFailed(number, error.errno, error.filename))
        else:
            child = KeptProcess(number, message.note, ProcessIdentity.of(pid), pid, kept)
            self._children[number] = child
            self._started(child, order, verdict)
        finally:
            _close(given)

    def _started(self, child: KeptProcess, order: SpawnOrder, verdict: Verdict | None) -> None:
        if verdict is None or self._forks is None:
            self._agent.send(ChildStarted(**child.facts()))
            return
        self._initialising.append((child, order, verdict))
        if self._forks.are_known:
            self._give_verdicts()

    def _give_verdicts(self) -> None:
        """Let the forks go that wait for it: run their programs, or execute them after all."""
        waiting, self._initialising = self._initialising, []
        for child, order, verdict in waiting:
            child.cold = self._forks.why_cold(order) if self._forks else ""
            verdict.give(may_run=not child.cold)
            self._agent.send(ChildStarted(**child.facts()))

    def _signal(self, child: KeptProcess | None, signum: int) -> None:
        """Signal a rank and its process group; a child not reaped yet keeps its pid."""
        if child is not None and child.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                try:
                    os.killpg(child.pid, signum)
                except ProcessLookupError:  # just forked: it has no group of its own yet
                    os.kill(child.pid, signum)

    def _bury(self, number: int) -> None:
        """Forget a rank that ended, and end what it left running."""
        child = self._children.pop(number, None)
        if child is not None:
            left = descendants.in_session(os.getpid(), child.pid, self._share.app_id)
            descendants.send(left, signal.SIGKILL)
            _close(child.kept)

    def _sweep(self, signum: int) -> None:
        """Signal all that still runs of the job, and report how many processes that was."""
        left = descendants.remaining(self._share, os.getpid())
        descendants.send(left, signum)
        self._agent.send(ChildrenLeft(len(left)))

    def _on_signals(self, _ready: int) -> None:
        if self._signals.read():
            self._reap()

    def _reap(self) -> None:
        """Report all that ended together in one message: none of them is the consequence of what
        is done about another."""
        self._give_verdicts()  # a start is reported before its end
        codes = {pid: os.waitstatus_to_exitcode(status) for pid, status in descendants.reap()}
        ended = []
        for child in self._children.values():
            if child.code is None and child.pid in codes:
                child.code = codes[child.pid]
                ended.append(ChildExit(child.number, child.code))
        if ended:
            self._agent.send(ChildrenExited(tuple(ended)))
        if any(each.code for each in ended) and self._forks is not None:
            self._forks.forget()
            self._is_looking = True

    def _end(self) -> None:
        descendants.kill_all(self._share, os.getpid(), collect=self._reap)
        self._reap()
        self._ended = True


def _signal_of(message: SignalChild | SweepJob) -> int:
    if message.signum not in _SIGNALS:
        raise BadFrame
    return message.signum


def _order(message: SpawnRequest, given: list[int]) -> SpawnOrder:
    words = [*message.argv, message.cwd, *message.env, *message.env.values()]
    is_text = not any("\0" in word for word in words)
    if not is_text or not message.argv or not 0 <= message.given <= len(given):
        raise BadFrame
    return SpawnOrder(
        argv=message.argv,
        env=message.env,
        cwd=message.cwd,
        fds=tuple(given),
        terminal=message.terminal,
        warm=message.warm,
    )


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
