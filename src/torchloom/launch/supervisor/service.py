"""The launch process of one app: handle reports of its nodes, act on the recovery rule, cancel."""

import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torchloom import settings
from torchloom.launch.agent import stores
from torchloom.launch.host import sockets
from torchloom.launch.host.descendants import JobShare
from torchloom.launch.host.identity import host_name
from torchloom.launch.host.sockets import FORWARDED, LOADED_AFTER, SignalPipe, load_needed
from torchloom.launch.hosts.carriers import Carriers
from torchloom.launch.hosts.joint_launch import JOINED
from torchloom.launch.hosts.tunnels import Tunnels
from torchloom.launch.keeper.client import kill_share
from torchloom.launch.protocol import (
    AgentHello,
    AgentLeaving,
    EndJob,
    JobSettings,
    LaunchMessage,
    MeetingReady,
    NodeCleared,
    NodeQuiet,
    NodeUnwatched,
    RankNotForked,
    RankOutput,
    RankOutputEnd,
    RankProcessReport,
    RanksExited,
    RanksStarted,
    ReplicaStartFailed,
    SignalRanks,
    StoreHosted,
)
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record_writer import RunRecordWriter, StartedRank
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.supervisor.nodes import NodeGathering, Nodes
from torchloom.launch.supervisor.recovery import RecoveryDriver
from torchloom.launch.supervisor.reports import RankErrors
from torchloom.launch.supervisor.starts import Incarnation, key_of
from torchloom.launch.variables import TOKEN_VARIABLE
from torchloom.launch.wire import Connection, WireMessage, nonce
from torchloom.rules import replicas
from torchloom.rules.replicas import (
    AppVerdict,
    StartFailed,
)
from torchloom.settings import environment
from torchloom.specs.api import AppState
from torchloom.specs.states import Place, ReplicaKey

_VERSION = 1  # of questions
_DOOR = "weaver.sock"
_SLACK = 5.0  # seconds between an allocation's start and that of what keeps its time
_STALE = 600.0  # seconds that nothing outlives its allocation: a variable of an older one
LEASH_GRACE = 3.0  # seconds for ranks whose command is gone
TIME_LIMIT = "time_limit"  # of the allocation: its scheduler ends what is in it
_LEAVE = "leave"


class LeaveRequest:
    """One request to the weaver, sent without waiting; `refused` is called if it cannot be met.

    Without a plane there is no weaver to ask, and nothing that would commit what is saved.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        refused: Callable[[], None],
        door: Path | None = None,
    ) -> None:
        self._selector = selector
        self._refused = refused
        self._door = door or settings.plane_dir() / _DOOR
        self._channel: Connection | None = None

    def ask(self, job: str, reason: str, patience: float) -> bool:
        """Ask for the end of a job after its next step; false when there is no plane."""
        try:
            channel = sockets.connect(self._door)
        except OSError:
            return False
        self._channel = Connection(channel, self._selector, self._handle, self._refused)
        question = {"ask": "stop", "version": _VERSION, "job": job, "reason": reason}
        self._channel.send({**question, "wait": patience, "author": settings.user_name()})
        return True

    def _handle(self, answer: WireMessage, _fds: list[int]) -> None:
        if "error" in answer:
            self._refused()


class Cancellation:
    """What is asked of a run from without, and the grace that its ranks have for it."""

    def __init__(
        self,
        folder: RunFolder,
        selector: selectors.BaseSelector,
        recovery: RecoveryDriver,
        deadline: int = 0,
    ) -> None:
        self._folder = folder
        self._selector = selector
        self._recovery = recovery
        self._deadline = deadline

    def ask(self, at_once: bool) -> None:
        """Do what a cancel request says; without one the run is ended all the same."""
        recovery, asked = self._recovery, self._folder.cancel_request()
        recovery.polite = int(asked.get("signal") or signal.SIGTERM)
        if at_once:
            recovery.grace = 0.0
            for key in recovery.stopping():
                recovery.send_stop(key)
        reason = str(asked.get("reason") or "agent_terminated")
        if not at_once and self._asked_to_leave(reason):
            recovery.take(replicas.Leaving(reason, _state(reason)))
        else:
            self._end_politely(reason)

    def launcher_lost(self) -> None:
        """The process that launched the app is gone: end the app."""
        self._recovery.grace = min(self._recovery.grace, LEASH_GRACE)
        reason = TIME_LIMIT if is_over(self._deadline) else "launcher_lost"
        self._recovery.take(replicas.Cancelled(reason, _state(reason)))

    def _asked_to_leave(self, reason: str) -> bool:
        """Have ranks that save do so and leave at one step; false when they cannot be asked."""
        recovery, grace = self._recovery, self._recovery.grace
        is_first = _LEAVE not in recovery.later and recovery.state.verdict is None
        if (
            not is_first
            or not recovery.live_ranks.alive
            or not grace
            or not recovery.saved.may_exist
        ):
            return False
        parting = LeaveRequest(self._selector, self._end_politely)
        if not parting.ask(self._folder.app_id, reason, grace):
            return False
        recovery.later.put(_LEAVE, grace, self._end_politely)
        return True

    def _end_politely(self, reason: str = "agent_terminated") -> None:
        self._recovery.later.drop(_LEAVE)
        # what was said first stands
        self._recovery.take(replicas.Cancelled(reason, _state(reason)))


def is_over(deadline: int) -> bool:
    """Tell whether an allocation ends about now; its own clock started a little before ours."""
    return -_STALE < deadline - time.time() <= _SLACK


def _state(reason: str) -> AppState:
    return AppState.FAILED if reason == TIME_LIMIT else AppState.CANCELLED


_PATIENCE = 15.0  # seconds beyond the grace in which agents must have cleared up


class Shutdown:
    """The end of a run: which nodes must still clear up, and how much output no log has."""

    def __init__(self, request: LaunchRequest, nodes: Nodes) -> None:
        self._request = request
        self._nodes = nodes
        self._uncleared: set[str] = set()
        self.lost_bytes = 0

    def run(self, grace: float, code: int, turn: Callable[[float], None]) -> None:
        """Have all agents end what is there, and take turns until they have or time is over."""
        self._uncleared = set(self._nodes.present) - set(self._nodes.missing())
        self._nodes.tell_all(EndJob(grace, code))
        deadline = time.monotonic() + grace + _PATIENCE
        while self._uncleared and time.monotonic() < deadline:
            turn(max(0.0, deadline - time.monotonic()))

    def cleared(self, name: str, lost: int) -> None:
        """A node has nothing left."""
        self.lost_bytes += lost
        self._uncleared.discard(name)
        self._nodes.release(name)

    def gone(self, name: str) -> None:
        """A node is lost: no agent will clear up there."""
        self._uncleared.discard(name)

    def sweep(self) -> None:
        """End what is left on this very host, where its agent was lost with its guard."""
        if not self._request.carrier and self._nodes.lost:
            kill_share(JobShare(self._request.app_id))
            stores.clear(JobShare(self._request.app_id))


class RunSupervisor:
    """One app, from the first start to the last exit."""

    def __init__(
        self,
        request: LaunchRequest,
        writer: RunRecordWriter,
        signals: SignalPipe,
        listener: socket.socket,
        leash: socket.socket | None = None,
        meeting: socket.socket | None = None,
    ) -> None:
        self._request = request
        self._writer = writer
        self._signals = signals
        self._leash = leash
        self._quiet_at: dict[str, float] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fileno(), selectors.EVENT_READ, self._on_signals)
        if leash is not None:
            self._selector.register(leash, selectors.EVENT_READ, self._on_leash)
        self._nodes = self._agents()
        self._nodes.take_calls(listener)
        self._gathering = NodeGathering(request, self._nodes, self._carriers, meeting)
        self._shutdown = Shutdown(request, self._nodes)
        self._reports = RankErrors(request.log_dir, is_resumed=request.attempt > 0)
        self._recovery = RecoveryDriver(request, self._selector, self._nodes, writer, self._reports)
        self._live_ranks, self._starts = self._recovery.live_ranks, self._recovery.starts
        self._live = self._recovery.live
        self._cancelling = Cancellation(
            writer.folder, self._selector, self._recovery, request.deadline
        )

    def _agents(self) -> Nodes:
        """Return the connections to the agents; those of other hosts are carried and admitted."""
        app_id, token = self._request.app_id, _token(self._request)
        self._carriers = Carriers(self._request, self._writer.folder.path, token)
        self._tunnels = Tunnels(self._selector, app_id, token, self._unwatched)
        names = self._request.nodes or (host_name(),)
        handlers = (self._on_joined, self._on_message, self._on_lost, self._tunnels.take)
        return Nodes(self._selector, names, token, app_id, *handlers)

    def run(self) -> None:
        """Run the app to its end."""
        self._on_signals()
        self._gathering.call()
        self._gathering.wait(self._is_complete, self._turn)
        if self._recovery.verdict is None:
            self._recovery.take(replicas.Begin())
        if self._recovery.verdict is None:
            self._writer.running()
            self._recovery.later.put("load", LOADED_AFTER, load_needed)
        while self._recovery.verdict is None:
            self._turn()
        self._finish(self._recovery.verdict)

    def _is_complete(self) -> bool:
        """Tell whether all nodes that are needed have joined."""
        has_ended = self._recovery.verdict is not None
        return has_ended or self._nodes.have_joined(self._recovery.needed())

    def _turn(self, longest: float | None = None) -> None:
        waits = [wait for wait in (self._nodes.patience(), longest) if wait is not None]
        waits += self._recovery.later.waits()
        for key, ready in self._selector.select(min(waits, default=None)):
            key.data(ready)
        self._nodes.expire()
        self._recovery.later.do()

    def _finish(self, verdict: AppVerdict) -> None:
        """Have all cleared up, and write down how it ended."""
        self._live.close()
        strays = self._nodes.missing()  # they never called, or are about to call too late
        code = 0 if verdict.state is AppState.SUCCEEDED else 1
        self._shutdown.run(self._recovery.grace, code, self._turn)
        self._reports.close()
        self._gathering.close()
        self._nodes.close()
        self._tunnels.close()
        self._shutdown.sweep()
        failed = verdict.state is AppState.FAILED
        error = self._reports.first(verdict.reason) if failed else None
        summary = self._reports.error_summary(verdict.reason) if failed else None
        self._writer.finished(verdict, error, self._shutdown.lost_bytes, summary)
        self._carriers.close((*self._nodes.lost, *strays))

    # Nodes.

    def _on_joined(self, name: str, hello: AgentHello) -> None:
        """Send an agent the job's settings, and handle what happened while there was no agent."""
        self._nodes.send(name, self._job_for(hello))
        if self._request.carrier:
            self._writer.note("node_joined", node=name, pid=hello.process.pid)
        self._started(hello.ranks)
        current = self._live_ranks.current(hello.ranks)
        there = {rank.place for rank in current}
        self._repeat(name, {place[:2] for place in there})
        self._live.found(name, there)
        ours, coming = self._live_ranks.on(name), self._live_ranks.to_come(name)
        gone = [_vanished(*one) for one in ours.items() if one[0] not in {*there, *coming}]
        ended = [rank for rank in current if rank.code is not None]
        self._exited(ended + [rank for rank in gone if not self._starts.is_waiting(rank.key)])

    def _job_for(self, hello: AgentHello) -> JobSettings:
        return JobSettings(
            log_dir=self._request.log_dir,
            marker=self._gathering.marker,
            quiet_limit=self._request.idle_timeout,
            orphan_limit=self._request.orphan_limit,
            proof=self._carriers.proof(hello.challenge),
            uplink=self._tunnels.uplink(hello.process),
        )

    def _repeat(self, name: str, there: set[tuple[str, int]]) -> None:
        """Repeat what the agent before may not have received."""
        here = self._recovery.on(name)
        for key in [key for key in self._recovery.stopping() if key in here]:
            self._starts.acknowledge(key)
            self._recovery.send_stop(key)
        self._starts.repeat(name, there)

    def _on_lost(self, name: str, evidence: str) -> None:
        self._reports.node_lost(name, evidence)
        self._writer.note("node_lost", node=name, evidence=evidence)
        self._shutdown.gone(name)
        was_watched = self._live.is_watched
        self._live.lost(name, evidence)
        if was_watched:
            return
        self._recovery.came(self._recovery.on(name))
        self._live_ranks.lose(name)
        for key in self._recovery.on(name):
            self._starts.drop(key)
        self._recovery.take(replicas.NodeLost(name, evidence))

    def _unwatched(self, why: str, name: str = "") -> None:
        """Note that ranks of another host, or of all others, run on and no plane sees them."""
        self._writer.note("unwatched", node=name, reason=why)

    # What happens.

    def _on_signals(self, _ready: int = 0) -> None:
        for signum in self._signals.read():
            if signum == signal.SIGCHLD:
                self._carriers.reap()
                for name, why in self._carriers.failed(self._nodes.missing()):
                    self._nodes.give_up(name, why)
            elif signum in (signal.SIGUSR1, signal.SIGUSR2) and self._gathering.has_met:
                own = self._nodes.names[
                    0
                ]  # the sender of the signal sends it to each of the launches that met
                self._nodes.send(own, SignalRanks(signum))
            elif signum in FORWARDED:
                self._nodes.tell_all(SignalRanks(signum))
            else:
                self._cancelling.ask(at_once=signum == signal.SIGQUIT)

    def _on_leash(self, _ready: int) -> None:
        if self._leash is not None:
            self._selector.unregister(self._leash)
            self._leash = None
            self._cancelling.launcher_lost()

    def _on_message(self, name: str, message: LaunchMessage) -> None:
        match message:
            case RanksStarted():
                self._started(message.ranks)
            case ReplicaStartFailed():
                self._start_failed(name, message)
            case RanksExited():
                self._exited(self._live_ranks.current(message.ranks))
            case StoreHosted():
                self._starts.met(name, message)
            case MeetingReady():
                self._live.met(message)
            case RankNotForked():
                self._live.not_forked(message)
            case NodeQuiet():
                self._quiet(name)
            case AgentLeaving():
                self._nodes.give_up(name, "the launch there has ended")
            case RankOutput():
                self._reports.output(message)
            case RankOutputEnd():
                self._reports.output_end(message)
            case NodeUnwatched():
                self._unwatched(message.why, name)
            case NodeCleared():
                self._shutdown.cleared(name, message.lost)

    # What happens to ranks.

    def _started(self, reports: Sequence[RankProcessReport]) -> None:
        ranks = self._live_ranks.current(reports)
        for rank in ranks:
            self._starts.acknowledge(rank.key)
            self._live_ranks.acknowledge(rank.place)
        self._writer.ranks_started(self._started_rank(rank) for rank in ranks)

    def _started_rank(self, rank: RankProcessReport) -> StartedRank:
        return StartedRank(
            place=rank.place,
            rank=self._recovery.rank_at(rank.place),
            process=rank.process,
            attempt=rank.attempt,
            warmth=rank.warmth,
            life=rank.incarnation,
            generation=rank.generation,
        )

    def _start_failed(self, name: str, message: ReplicaStartFailed) -> None:
        key = ReplicaKey(message.role, message.index)
        cause = f"cannot_start: {message.cause}"
        self._starts.acknowledge(key)
        self._live_ranks.forget(key)
        if message.bad_node and self._recovery.state.spares:
            self._nodes.give_up(name, cause)
        else:
            self._recovery.take(StartFailed(key, cause))

    def _exited(self, ranks: Sequence[RankProcessReport]) -> None:
        """Take note of all that ended together before anything is done about one of them."""
        self._live.tell(ranks)
        phases = [self._recovery.state.replicas[rank.key].phase for rank in ranks]
        ups = [phase is replicas.ReplicaPhase.UP for phase in phases]
        fresh = [rank for rank, up in zip(ranks, ups, strict=True) if rank.code and up]
        if not self._live.is_watched:
            steps = [rank.last_step for rank in fresh]
            self._recovery.came([rank.key for rank in fresh], steps)
        for rank, up in zip(ranks, ups, strict=True):
            self._rank_exited(rank, rank.error is not None or rank in fresh)
            self._rank_ended(rank, AppState.FAILED if up else AppState.CANCELLED)
        if ranks and self._live.is_watched:
            self._live.ended()

    def _rank_exited(self, rank: RankProcessReport, has_failed: bool) -> None:
        place = rank.place
        self._live_ranks.ended(place)
        self._starts.acknowledge(rank.key)  # one that was taken back has ended all the same
        if has_failed:
            cause = self._recovery.cause(place, rank.code or 0)
            self._reports.failed(place, self._recovery.rank_at(place), rank, cause)
        self._reports.ended(rank)

    def _rank_ended(self, rank: RankProcessReport, failure: AppState) -> None:
        place, code, step = rank.place, rank.code or 0, rank.last_step
        state = failure if code else AppState.SUCCEEDED
        self._writer.rank_ended(place, state, code, step if step >= 0 else None)
        if not self._live.is_watched:
            self._recovery.take(self._recovery.exit_of(place, code))

    def _quiet(self, name: str) -> None:
        """Note that a node has printed nothing for too long; if all of them, the run hangs."""
        now, limit = time.monotonic(), self._request.idle_timeout
        self._quiet_at[name] = now
        busy = {self._live_ranks.at(place) for place in self._live_ranks.alive}
        if busy and all(self._quiet_at.get(node, 0.0) > now - limit for node in busy):
            self._quiet_at.clear()
            self._recovery.came([key_of(place) for place in self._live_ranks.alive])
            self._recovery.take(replicas.Idle(f"idle_output_{limit:g}s"))


def _token(request: LaunchRequest) -> str:
    """Return what agents of other hosts must know: a new secret, or that of a meeting."""
    if request.carrier is None:
        return ""
    return nonce() if request.carrier.launcher != JOINED else environment()[TOKEN_VARIABLE]


def _vanished(place: Place, incarnation: Incarnation) -> RankProcessReport:
    """Return the end of a rank that was not reported: its agent and its keeper are gone."""
    return RankProcessReport(*place, *incarnation, code=-int(signal.SIGKILL))
