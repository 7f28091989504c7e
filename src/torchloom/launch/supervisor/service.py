"""The launch process of one app: hear what happens on its nodes, have the rule decide about it."""

import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchloom.launch.agent import stores
from torchloom.launch.host.descendants import NodeShare
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.host.loop import FORWARDED, LOADED_AFTER, SignalPipe, load_needed
from torchloom.launch.hosts.carriers import Carriers
from torchloom.launch.hosts.joint_launch import JOINED
from torchloom.launch.hosts.tunnels import Tunnels
from torchloom.launch.keeper.client import kill_share
from torchloom.launch.records.record_writer import Place, RankStarted, RunRecordWriter
from torchloom.launch.records.request import LaunchRequest
from torchloom.launch.supervisor.cancellation import Cancellation
from torchloom.launch.supervisor.live_ranks import Life, key_of, place_of
from torchloom.launch.supervisor.nodes import NodeGathering, Nodes
from torchloom.launch.supervisor.recovery import RecoveryDriver
from torchloom.launch.supervisor.reports import RankReports
from torchloom.launch.variables import TOKEN_VARIABLE
from torchloom.launch.wire import WireMessage, nonce
from torchloom.rules import replicas
from torchloom.rules.replicas import (
    AppVerdict,
    StartFailed,
)
from torchloom.settings import environment
from torchloom.specs.api import AppState
from torchloom.specs.states import ReplicaKey

_PATIENCE = 15.0  # seconds beyond the grace in which agents must have cleared up


class Shutdown:
    """Who has still to clear up, and how much of the ranks' output no log has."""

    def __init__(self, request: LaunchRequest, nodes: Nodes) -> None:
        self._request = request
        self._nodes = nodes
        self._uncleared: set[str] = set()
        self.lost_bytes = 0

    def say(self, grace: float, code: int, turn: Callable[[float], None]) -> None:
        """Have all agents end what is there, and take turns until they have or time is over."""
        self._uncleared = set(self._nodes.present) - set(self._nodes.missing())
        self._nodes.tell_all({"do": "end", "grace": grace, "code": code})
        deadline = time.monotonic() + grace + _PATIENCE
        while self._uncleared and time.monotonic() < deadline:
            turn(max(0.0, deadline - time.monotonic()))

    def cleared(self, name: str, lost: int) -> None:
        """A node has nothing left."""
        self.lost_bytes += lost
        self._uncleared.discard(name)
        self._nodes.let_go(name)

    def gone(self, name: str) -> None:
        """A node is lost: nobody will clear up there."""
        self._uncleared.discard(name)

    def sweep(self) -> None:
        """End what is left on this very host, where its agent was lost with its guard."""
        if not self._request.carrier and self._nodes.lost:
            kill_share(NodeShare(self._request.app_id))
            stores.clear(NodeShare(self._request.app_id))


class RunSupervisor:
    """One app, from the first start to the last exit."""

    def __init__(
        self,
        request: LaunchRequest,
        ledger: RunRecordWriter,
        signals: SignalPipe,
        listener: socket.socket,
        leash: socket.socket | None = None,
        meeting: socket.socket | None = None,
    ) -> None:
        self._request = request
        self._ledger = ledger
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
        self._farewell = Shutdown(request, self._nodes)
        self._reports = RankReports(request.log_dir, goes_on=request.attempt > 0)
        self._ruling = RecoveryDriver(request, self._selector, self._nodes, ledger, self._reports)
        self._crew, self._starts = self._ruling.crew, self._ruling.starts
        self._live = self._ruling.live
        self._cancelling = Cancellation(
            ledger.folder, self._selector, self._ruling, request.deadline
        )

    def _agents(self) -> Nodes:
        """Return what hears the agents, with those who bring and let through the ones afar."""
        app_id, token = self._request.app_id, _token(self._request)
        self._carriers = Carriers(self._request, self._ledger.folder.path, token)
        self._tunnels = Tunnels(self._selector, app_id, token, self._unwatched)
        names = self._request.nodes or (host_name(),)
        heard = (self._on_joined, self._on_message, self._on_lost, self._tunnels.take)
        return Nodes(self._selector, names, token, app_id, *heard)

    def run(self) -> None:
        """Run the app to its end."""
        self._on_signals()
        self._gathering.call()
        self._gathering.wait(self._is_complete, self._turn)
        if self._ruling.verdict is None:
            self._ruling.take(replicas.Begin())
        if self._ruling.verdict is None:
            self._ledger.running()
            self._ruling.later.put("load", LOADED_AFTER, load_needed)
        while self._ruling.verdict is None:
            self._turn()
        self._finish(self._ruling.verdict)

    def _is_complete(self) -> bool:
        """Tell whether there is nobody to wait for."""
        has_ended = self._ruling.verdict is not None
        return has_ended or self._nodes.have_joined(self._ruling.needed())

    def _turn(self, longest: float | None = None) -> None:
        waits = [wait for wait in (self._nodes.patience(), longest) if wait is not None]
        waits += self._ruling.later.waits()
        for key, ready in self._selector.select(min(waits, default=None)):
            key.data(ready)
        self._nodes.expire()
        self._ruling.later.do()

    def _finish(self, verdict: AppVerdict) -> None:
        """Have all cleared up, and write down how it ended."""
        self._live.close()
        strays = self._nodes.missing()  # they were never heard of, or are about to call in vain
        code = 0 if verdict.state is AppState.SUCCEEDED else 1
        self._farewell.say(self._ruling.grace, code, self._turn)
        self._reports.close()
        self._gathering.close()
        self._nodes.close()
        self._tunnels.close()
        self._farewell.sweep()
        failed = verdict.state is AppState.FAILED
        error = self._reports.first(verdict.reason) if failed else None
        told = self._reports.told(verdict.reason) if failed else None
        self._ledger.finished(verdict, error, self._farewell.lost_bytes, told)
        self._carriers.close((*self._nodes.lost, *strays))

    # Nodes.

    def _on_joined(self, name: str, hello: WireMessage) -> None:
        """Tell an agent about the job, and learn what happened while it had none."""
        self._nodes.send(name, self._job_for(hello))
        if self._request.carrier:
            self._ledger.note("node_joined", node=name, pid=hello["process"]["pid"])
        self._started(hello)
        there = {place_of(rank) for rank in self._current(hello)}
        self._repeat(name, {place[:2] for place in there})
        self._live.found(name, there)
        ours, coming = self._crew.on(name), self._crew.to_come(name)
        gone = [_vanished(*one) for one in ours.items() if one[0] not in {*there, *coming}]
        ended = [rank for rank in self._current(hello) if rank["code"] is not None]
        self._exited(ended + [rank for rank in gone if not self._starts.is_waiting(_key(rank))])

    def _job_for(self, hello: WireMessage) -> WireMessage:
        return {
            "do": "job",
            "log_dir": self._request.log_dir,
            "marker": self._gathering.marker,
            "quiet_limit": self._request.idle_timeout,
            "orphan_limit": self._request.orphan_limit,
            "proof": self._carriers.proof(hello.get("challenge", "")),
            "uplink": self._tunnels.uplink(hello),
        }

    def _repeat(self, name: str, there: set[tuple[str, int]]) -> None:
        """Say again what an agent before may not have heard."""
        here = self._ruling.on(name)
        for key in [key for key in self._ruling.stopping() if key in here]:
            self._starts.heard(key)
            self._ruling.send_stop(key)
        self._starts.repeat(name, there)

    def _on_lost(self, name: str, evidence: str) -> None:
        self._reports.node_lost(name, evidence)
        self._ledger.note("node_lost", node=name, evidence=evidence)
        self._farewell.gone(name)
        was_watched = self._live.is_watched
        self._live.lost(name, evidence)
        if was_watched:
            return
        self._ruling.came(self._ruling.on(name))
        self._crew.lose(name)
        for key in self._ruling.on(name):
            self._starts.drop(key)
        self._ruling.take(replicas.NodeLost(name, evidence))

    def _unwatched(self, why: str, name: str = "") -> None:
        """Note that ranks of another host, or of all others, run on and no plane sees them."""
        self._ledger.note("unwatched", node=name, reason=why)

    # What happens.

    def _on_signals(self, _ready: int = 0) -> None:
        for signum in self._signals.read():
            if signum == signal.SIGCHLD:
                self._carriers.reap()
                for name, why in self._carriers.failed(self._nodes.missing()):
                    self._nodes.give_up(name, why)
            elif signum in (signal.SIGUSR1, signal.SIGUSR2) and self._gathering.has_met:
                own = self._nodes.names[0]  # whoever signals launches that met signals each
                self._nodes.send(own, {"do": "signal", "signum": signum})
            elif signum in FORWARDED:
                self._nodes.tell_all({"do": "signal", "signum": signum})
            else:
                self._cancelling.ask(at_once=signum == signal.SIGQUIT)

    def _on_leash(self, _ready: int) -> None:
        if self._leash is not None:
            self._selector.unregister(self._leash)
            self._leash = None
            self._cancelling.launcher_lost()

    def _on_message(self, name: str, message: WireMessage) -> None:
        match message["say"]:
            case "started":
                self._started(message)
            case "start_failed":
                self._start_failed(name, message)
            case "exited":
                self._exited(self._current(message))
            case "store":
                self._starts.met(name, message)
            case "met":
                self._live.met(message)
            case "not_forked":
                self._live.not_forked(message)
            case "quiet":
                self._quiet(name)
            case "leaving":
                self._nodes.give_up(name, "the launch there has ended")
            case "output":
                self._reports.output(message)
            case "output_end":
                self._reports.output_end(message)
            case "unwatched":
                self._unwatched(message["why"], name)
            case "cleared":
                self._farewell.cleared(name, message["lost"])

    # What happens to ranks.

    def _started(self, message: WireMessage) -> None:
        ranks = self._current(message)
        for rank in ranks:
            self._starts.heard(_key(rank))
            self._crew.heard(place_of(rank))
        self._ledger.ranks_started(self._told(rank) for rank in ranks)

    def _told(self, rank: Mapping[str, Any]) -> RankStarted:
        place = place_of(rank)
        return RankStarted(
            place=place,
            rank=self._ruling.rank_at(place),
            process=ProcessIdentity.from_dict(rank["process"]) if rank["process"] else None,
            attempt=rank["attempt"],
            warmth=rank["warm"],
            life=rank["life"],
            generation=rank["generation"],
        )

    def _current(self, message: WireMessage) -> list[Mapping[str, Any]]:
        """Return the ranks of a message that are there now."""
        return self._crew.current(message["ranks"])

    def _start_failed(self, name: str, message: WireMessage) -> None:
        key = ReplicaKey(message["role"], message["index"])
        cause = f"cannot_start: {message['cause']}"
        self._starts.heard(key)
        self._crew.forget(key)
        if message["bad_node"] and self._ruling.state.spares:
            self._nodes.give_up(name, cause)
        else:
            self._ruling.take(StartFailed(key, cause))

    def _exited(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Take note of all that ended together before anything is done about one of them."""
        self._live.tell(ranks)
        phases = [self._ruling.state.replicas[_key(rank)].phase for rank in ranks]
        ups = [phase is replicas.ReplicaPhase.UP for phase in phases]
        fresh = [rank for rank, up in zip(ranks, ups, strict=True) if rank["code"] and up]
        if not self._live.is_watched:
            steps = [rank.get("step", -1) for rank in fresh]
            self._ruling.came([_key(rank) for rank in fresh], steps)
        for rank, up in zip(ranks, ups, strict=True):
            self._rank_exited(rank, "error" in rank or rank in fresh)
            self._rank_ended(rank, AppState.FAILED if up else AppState.CANCELLED)
        if ranks and self._live.is_watched:
            self._live.ended()

    def _rank_exited(self, rank: Mapping[str, Any], has_failed: bool) -> None:
        place = place_of(rank)
        self._crew.ended(place)
        self._starts.heard(_key(rank))  # one that was taken back has ended all the same
        if has_failed:
            cause = self._ruling.cause(place, rank["code"])
            self._reports.failed(place, self._ruling.rank_at(place), rank, cause)
        self._reports.ended(rank)

    def _rank_ended(self, rank: Mapping[str, Any], failure: AppState) -> None:
        place, code, step = place_of(rank), rank["code"], rank.get("step", -1)
        state = failure if code else AppState.SUCCEEDED
        self._ledger.rank_ended(place, state, code, step if step >= 0 else None)
        if not self._live.is_watched:
            self._ruling.take(self._ruling.exit_of(place, code))

    def _quiet(self, name: str) -> None:
        """Take note that a node has printed nothing for too long; all of them: that is a hang."""
        now, limit = time.monotonic(), self._request.idle_timeout
        self._quiet_at[name] = now
        busy = {self._crew.at(place) for place in self._crew.alive}
        if busy and all(self._quiet_at.get(node, 0.0) > now - limit for node in busy):
            self._quiet_at.clear()
            self._ruling.came([key_of(place) for place in self._crew.alive])
            self._ruling.take(replicas.Idle(f"idle_output_{limit:g}s"))


def _token(request: LaunchRequest) -> str:
    """Return what agents of other hosts must know: a new secret, or that of a meeting."""
    if request.carrier is None:
        return ""
    return nonce() if request.carrier.launcher != JOINED else environment()[TOKEN_VARIABLE]


def _key(rank: Mapping[str, Any]) -> ReplicaKey:
    return key_of(place_of(rank))


def _vanished(place: Place, life: Life) -> dict[str, Any]:
    """Return the end of a rank that nobody has seen: its agent and its keeper are gone."""
    role, index, local_rank = place
    facts = {"role": role, "index": index, "local_rank": local_rank}
    lived = {"attempt": life[0], "life": life[1]}
    return {**facts, **lived, "code": -int(signal.SIGKILL)}
