"""Carry out what the recovery rule decides for one app on this host; decide nothing."""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from torchloom.launch import descendants, ports
from torchloom.launch.contract import Seat, rank_environment, rank_of
from torchloom.launch.errorfile import first_error, put_aside
from torchloom.launch.ledger import Ledger, rank_logs
from torchloom.launch.logfiles import LogFiles
from torchloom.launch.pump import Pump
from torchloom.launch.rank import Rank
from torchloom.launch.request import LaunchRequest
from torchloom.launch.signals import SignalPipe
from torchloom.launch.terminal import Relay
from torchloom.rules import recovery
from torchloom.rules.recovery import Finish, ReplicaKey, Start, StartFailed, Stop, Verdict
from torchloom.specs.api import AppState

_DRAIN = 1.0  # seconds to read what dead ranks left in their pipes
_LOOK = 0.02  # seconds between looks at leftovers that were told to end


class Supervisor:
    """One app's processes, from the first start to the last exit."""

    def __init__(
        self,
        request: LaunchRequest,
        ledger: Ledger,
        signals: SignalPipe,
        inherited: Mapping[str, str],
        stdin: int | None = None,
        terminal: socket.socket | None = None,
        leash: socket.socket | None = None,
    ) -> None:
        self._request = request
        self._ledger = ledger
        self._signals = signals
        self._inherited = inherited
        self._stdin = stdin
        self._state = recovery.initial(role.rule() for role in request.roles)
        self._events: deque[recovery.Event] = deque()
        self._alive: dict[int, Rank] = {}
        self._crew: dict[ReplicaKey, list[Rank]] = {}  # each replica's newest attempt
        self._kill_at: dict[ReplicaKey, float] = {}
        self._ports: dict[tuple[str, int], int] = {}
        self._grace = request.grace
        self._polite = int(signal.SIGTERM)
        self._lost_bytes = 0
        self._verdict: Verdict | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fileno(), selectors.EVENT_READ, self._on_signals)
        self._leash = leash
        if leash is not None:
            self._selector.register(leash, selectors.EVENT_READ, self._on_leash)
        self._relay = Relay(terminal, self._selector) if terminal is not None else None
        self._pump = Pump(self._selector, self._relay)

    def run(self) -> None:
        """Run the app to its end."""
        self._on_signals()
        self._take(recovery.Begin())
        if self._verdict is None:
            self._ledger.running()
        while self._verdict is None:
            self._turn()
        self._clear_up()
        self._ledger.finished(self._verdict, self._first_error(), self._lost_bytes)
        if self._relay is not None:
            self._relay.close()

    def _turn(self, longest: float | None = None) -> None:
        """Wait for something to happen, see to it, and kill whoever outstayed its grace."""
        for key, ready in self._selector.select(self._patience(longest)):
            key.data(ready)
        self._pump.resume()
        for replica in [key for key, when in self._kill_at.items() if when <= time.monotonic()]:
            del self._kill_at[replica]
            for rank in self._alive_of(replica):
                rank.send(signal.SIGKILL)

    def _patience(self, longest: float | None) -> float | None:
        waits = [max(0.0, when - time.monotonic()) for when in self._kill_at.values()]
        return min([*waits, *([] if longest is None else [longest])], default=None)

    # What happens.

    def _on_signals(self, _ready: int = 0) -> None:
        for signum in self._signals.read():
            if signum == signal.SIGCHLD:
                self._reap()
            else:
                self._cancel(at_once=signum == signal.SIGQUIT)

    def _on_leash(self, _ready: int) -> None:
        """Whoever launched the app is gone, and the app with it."""
        if self._leash is not None:
            self._selector.unregister(self._leash)
            self._leash = None
            self._take(recovery.Cancelled("launcher_lost"))

    def _cancel(self, at_once: bool) -> None:
        if at_once:
            self._grace = 0.0
            self._kill_at = dict.fromkeys(self._kill_at, 0.0)
        asked = self._ledger.folder.cancel_request()
        self._polite = int(asked.get("signal") or signal.SIGTERM)
        self._take(recovery.Cancelled(str(asked.get("reason") or "agent_terminated")))

    def _reap(self) -> None:
        """Take note of all that ended together before anything is done about one of them."""
        ended = [(self._alive.pop(pid, None), status) for pid, status in descendants.reap()]
        known = [(rank, os.waitstatus_to_exitcode(status)) for rank, status in ended if rank]
        told = [self._state.replicas[rank.key].phase is not recovery.Phase.UP for rank, _ in known]
        for (rank, code), was_told_to in zip(known, told, strict=True):
            self._pump.drain(rank)
            self._rank_ended(rank, code, AppState.CANCELLED if was_told_to else AppState.FAILED)

    def _rank_ended(self, rank: Rank, code: int, failure: AppState) -> None:
        place = (rank.key.role, rank.key.index, rank.local_rank)
        self._ledger.rank_ended(place, failure if code else AppState.SUCCEEDED, code)
        cause = self._cause(rank, code)
        self._take(recovery.RankExited(rank.key, rank.local_rank, code == 0, cause))

    def _cause(self, rank: Rank, code: int) -> str:
        role = self._request.role(rank.key.role)
        how = f"exit_code_{code}" if code >= 0 else f"exit_signal_{-code}"
        if role.distributed:
            return f"{how}_rank_{rank_of(role, rank.key, rank.local_rank)}"
        return f"{how}_{rank.key.role}_{rank.key.index}"

    # What is done about it.

    def _take(self, event: recovery.Event) -> None:
        self._events.append(event)
        while self._events:
            restarts = self._state.restarts
            self._state, effects = recovery.step(self._state, self._events.popleft())
            if self._state.restarts != restarts:
                self._ledger.restarted(self._state.restarts)
            for effect in effects:
                self._do(effect)

    def _do(self, effect: recovery.Effect) -> None:
        match effect:
            case Start():
                self._start(effect)
            case Stop():
                self._stop(effect.key)
            case Finish():
                self._verdict = effect.verdict

    def _start(self, effect: Start) -> None:
        key = effect.key
        self._kill_at.pop(key, None)  # the grace was for the life before
        self._bury(key)
        crew = self._crew[key] = []
        try:
            settled = ports.settle(self._request.replica(key).ports)
            for local_rank in range(self._request.role(key.role).ranks):
                crew.append(self._start_rank(effect, local_rank, settled))
        except OSError as error:
            for rank in crew:
                rank.send(signal.SIGKILL)
            cause = f"cannot_start: {error.filename}: {error.strerror}"
            self._events.append(StartFailed(key, cause))
        self._ledger.ranks_started(
            ((key.role, key.index, rank.local_rank), rank.process, effect.attempt) for rank in crew
        )

    def _start_rank(self, effect: Start, local_rank: int, settled: Mapping[str, int]) -> Rank:
        key, role = effect.key, self._request.role(effect.key.role)
        logs = Path(self._request.log_dir, rank_logs(self._request, key, local_rank))
        rank = Rank(key, local_rank, LogFiles(logs))
        with contextlib.suppress(OSError):  # without it the rank has no logs, and no error file
            rank.log.directory.mkdir(parents=True, exist_ok=True)
        put_aside(rank.error_file, effect.attempt - 1)
        port = self._master_port(key.role, effect.attempt) if role.distributed else 0
        seat = Seat(key, local_rank, effect.attempt, rank.log.directory, port, settled)
        env = rank_environment(self._request, seat, self._inherited)
        argv, cwd = role.replicas[key.index].argv, role.cwd or self._request.cwd
        if self._relay is None:
            rank.start(argv, env, cwd, self._stdin)
        else:
            rank.start_on_terminal(argv, env, cwd, self._relay.attach)
        self._alive[rank.pid] = rank
        self._pump.watch(rank)
        return rank

    def _master_port(self, role: str, attempt: int) -> int:
        """Return where the ranks of a role meet: a fresh port for every attempt."""
        if (role, attempt) not in self._ports:
            self._ports[role, attempt] = ports.free_port()
        return self._ports[role, attempt]

    def _bury(self, key: ReplicaKey) -> None:
        """End what the attempt before left running, so that it cannot disturb the next."""
        for rank in self._crew.pop(key, []):
            left = descendants.in_session(os.getpid(), rank.pid)
            descendants.send(left, signal.SIGKILL)
            self._lost_bytes += rank.log.lost

    def _stop(self, key: ReplicaKey) -> None:
        self._kill_at[key] = time.monotonic() + self._grace
        for rank in self._alive_of(key):
            rank.send(self._polite)
            rank.send(signal.SIGCONT)  # a stopped process sees its signal only then

    def _alive_of(self, key: ReplicaKey) -> list[Rank]:
        return [rank for rank in self._alive.values() if rank.key == key]

    # The end.

    def _clear_up(self) -> None:
        """End whatever the app left running, politely first, and read its last words."""
        app_id, me = self._request.app_id, os.getpid()
        deadline = time.monotonic() + self._grace
        descendants.send(descendants.remaining(app_id, me), signal.SIGTERM)
        while descendants.remaining(app_id, me) and time.monotonic() < deadline and self._grace:
            self._turn(_LOOK)
        descendants.kill_all(app_id, me)
        self._pump.finish(_DRAIN)
        self._lost_bytes += sum(rank.log.lost for crew in self._crew.values() for rank in crew)

    def _first_error(self) -> str | None:
        if self._verdict is None or self._verdict.state is not AppState.FAILED:
            return None
        return first_error(rank.error_file for crew in self._crew.values() for rank in crew)
