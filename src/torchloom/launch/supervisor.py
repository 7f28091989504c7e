"""Carry out what the recovery rule decides for one app, through the agents of its nodes."""

import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom.launch import stores
from torchloom.launch.carriers import Carriers
from torchloom.launch.crew import Crew, Life, key_of, place_of
from torchloom.launch.descendants import Share
from torchloom.launch.frames import Message
from torchloom.launch.group import Group
from torchloom.launch.identity import ProcessId, host_name
from torchloom.launch.joining import JOINED
from torchloom.launch.keeping import kill_share
from torchloom.launch.later import Later
from torchloom.launch.ledger import Ledger, Place, Started
from torchloom.launch.link import nonce
from torchloom.launch.nodes import Nodes
from torchloom.launch.parting import Parting
from torchloom.launch.replacing import Replacing
from torchloom.launch.reports import Reports
from torchloom.launch.request import LaunchRequest
from torchloom.launch.saved import Saved
from torchloom.launch.signals import FORWARDED, SignalPipe
from torchloom.launch.starts import Seating, Starts
from torchloom.launch.tunnels import Tunnels
from torchloom.launch.variables import TOKEN_VARIABLE
from torchloom.rules import recovery
from torchloom.rules.lives import Point
from torchloom.rules.recovery import Finish, Replace, Start, StartFailed, Stop, Verdict, Wait
from torchloom.rules.replica import ReplicaKey
from torchloom.settings import environment
from torchloom.specs.api import AppState

LEASH_GRACE = 3.0  # seconds for ranks whose command is gone
_LEAVE = "leave"
_ENDS_WATCH = (recovery.Idle, recovery.Cancelled, recovery.Leaving)
_FAREWELL = 15.0  # seconds beyond the grace in which agents must have cleared up


class Supervisor:
    """One app, from the first start to the last exit."""

    def __init__(
        self,
        request: LaunchRequest,
        ledger: Ledger,
        signals: SignalPipe,
        listener: socket.socket,
        leash: socket.socket | None = None,
        meeting: socket.socket | None = None,
    ) -> None:
        self._request = request
        self._ledger = ledger
        self._signals = signals
        names = request.nodes or (host_name(),)
        self.state = recovery.initial(request.rules(), names, request.attempt)
        self._events: deque[recovery.Event] = deque()
        self._starts: list[Start] = []
        self._crew = Crew(lambda key: self.state.seats[key])
        self._began: dict[ReplicaKey, float] = {}
        self._later = Later()  # restarts that wait; ranks that were asked to leave and did not
        self._saved = Saved(request, ledger.note)
        self._why = "resumed"  # what the next start is for
        self._reports = Reports(request.log_dir, goes_on=request.attempt > 0)
        self._quiet_at: dict[str, float] = {}
        self._uncleared: set[str] = set()
        self._grace = request.grace
        self._polite = int(signal.SIGTERM)
        self._lost_bytes = 0
        self._verdict: Verdict | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fileno(), selectors.EVENT_READ, self._on_signals)
        self._token = _token(request)
        self._tunnels = Tunnels(self._selector, request.app_id, self._token, self._unwatched)
        self._nodes = Nodes(
            self._selector,
            names,
            self._token,
            request.app_id,
            self._on_joined,
            self._on_message,
            self._on_lost,
            self._tunnels.take,
        )
        self._meeting = meeting
        seating = Seating(
            lambda key: self.state.seats[key], self._group, lambda at: self._live.generation(at)
        )
        self._waiting = Starts(request, self._nodes, seating)
        self._live = Replacing(
            request,
            self._selector,
            self._later,
            self._crew,
            self._nodes,
            self._waiting,
            ledger,
            self._reports,
            self,
        )
        self._nodes.take_calls(listener)
        self._carriers = Carriers(request, ledger.folder.path, self._token)
        self._marker: Path | None = None
        self._leash = leash
        if leash is not None:
            self._selector.register(leash, selectors.EVENT_READ, self._on_leash)

    def run(self) -> None:
        """Run the app to its end."""
        self._on_signals()
        self._gather()
        if self._verdict is None:
            self.take(recovery.Begin())
        if self._verdict is None:
            self._ledger.running()
        while self._verdict is None:
            self._turn()
        self._live.close()
        strays = self._nodes.missing()  # they were never heard of, or are about to call in vain
        self._clear_up()
        failed = self._verdict.state is AppState.FAILED
        error = self._reports.first(self._verdict.reason) if failed else None
        told = self._reports.told(self._verdict.reason) if failed else None
        self._ledger.finished(self._verdict, error, self._lost_bytes, told)
        self._carriers.close((*self._nodes.lost, *strays))

    def _turn(self, longest: float | None = None) -> None:
        waits = [wait for wait in (self._nodes.patience(), longest) if wait is not None]
        waits += self._later.waits()
        for key, ready in self._selector.select(min(waits, default=None)):
            key.data(ready)
        self._nodes.expire()
        self._later.do()

    # Nodes.

    def _gather(self) -> None:
        """Have an agent on every node that is needed; those that do not come are lost."""
        for path, text in self._request.files:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        if self._meeting is not None:
            self._share_logs()
            self._nodes.take_calls(self._meeting)
            self._nodes.lies_at(self._nodes.names[0], self._meeting.getsockname()[0])
        elif self._request.carrier:
            self._share_logs()
            self._nodes.take_calls(self._carriers.start())
        began = time.monotonic()
        while self._verdict is None and not self._nodes.have_joined(self._needed()):
            left = began + self._join_limit() - time.monotonic()
            if left > 0:
                self._turn(left)
                continue
            for name in self._nodes.missing():
                why = self._carriers.last_words(name) or "nothing was heard of it"
                self._nodes.give_up(name, f"no agent in {time.monotonic() - began:.0f} s: {why}")

    def _join_limit(self) -> float:
        """Return how long nodes may take to come; less once there are as many as must be."""
        least = min(role.min_group or len(role.replicas) for role in self._request.roles)
        there = len(self._nodes.present) - len(self._nodes.missing())
        enough = self._request.last_call and there >= least
        return self._request.last_call if enough else self._request.join_limit

    def _needed(self) -> list[str]:
        seats = self.state.seats.items()
        return [name for key, name in seats if key not in self.state.dropped]

    def _share_logs(self) -> None:
        """Leave a mark in the log folder: a node that does not see it sends its logs here."""
        folder = Path(self._request.log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._marker = folder / f".seen-by-{nonce()}"
        self._marker.touch()

    def _on_joined(self, name: str, hello: Message) -> None:
        """Tell an agent about the job, and learn what happened while it had none."""
        self._nodes.send(
            name,
            {
                "do": "job",
                "log_dir": self._request.log_dir,
                "marker": str(self._marker) if self._marker else "",
                "quiet_limit": self._request.idle_timeout,
                "orphan_limit": self._request.orphan_limit,
                "proof": self._carriers.proof(hello.get("challenge", "")),
                "uplink": self._tunnels.uplink(hello),
            },
        )
        if self._request.carrier:
            self._ledger.note("node_joined", node=name, pid=hello["process"]["pid"])
        self._started(hello)
        there = {place_of(rank) for rank in self._current(hello)}
        self._repeat(name, {place[:2] for place in there})
        self._live.found(name, there)
        ours, coming = self._crew.on(name), self._crew.to_come(name)
        gone = [_vanished(*one) for one in ours.items() if one[0] not in {*there, *coming}]
        ended = [rank for rank in self._current(hello) if rank["code"] is not None]
        self._exited(ended + [rank for rank in gone if not self._waiting.is_waiting(_key(rank))])

    def _repeat(self, name: str, there: set[tuple[str, int]]) -> None:
        """Say again what an agent before may not have heard."""
        for key, replica in self.state.replicas.items():
            if self.state.seats[key] == name and replica.phase is recovery.Phase.STOPPING:
                self._waiting.heard(key)
                self._send_stop(key)
        self._waiting.repeat(name, there)

    def _on_lost(self, name: str, evidence: str) -> None:
        self._reports.node_lost(name, evidence)
        self._ledger.note("node_lost", node=name, evidence=evidence)
        self._uncleared.discard(name)
        was_watched = self._live.is_watched
        self._live.lost(name, evidence)
        if was_watched:
            return
        self.came([key for key, node in self.state.seats.items() if node == name])
        self._crew.lose(name)
        for key in [key for key, node in self.state.seats.items() if node == name]:
            self._waiting.drop(key)
        self.take(recovery.NodeLost(name, evidence))

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
            elif signum in (signal.SIGUSR1, signal.SIGUSR2) and self._meeting is not None:
                own = self._nodes.names[0]  # whoever signals launches that met signals each
                self._nodes.send(own, {"do": "signal", "signum": signum})
            elif signum in FORWARDED:
                self._nodes.tell_all({"do": "signal", "signum": signum})
            else:
                self._cancel(at_once=signum == signal.SIGQUIT)

    def _on_leash(self, _ready: int) -> None:
        """Whoever launched the app is gone, and the app with it."""
        if self._leash is not None:
            self._selector.unregister(self._leash)
            self._leash = None
            self._grace = min(self._grace, LEASH_GRACE)
            self.take(recovery.Cancelled("launcher_lost"))

    def _cancel(self, at_once: bool) -> None:
        asked = self._ledger.folder.cancel_request()
        self._polite = int(asked.get("signal") or signal.SIGTERM)
        if at_once:
            self._grace = 0.0
            for key, replica in self.state.replicas.items():
                if replica.phase is recovery.Phase.STOPPING:
                    self._send_stop(key)
        reason = str(asked.get("reason") or "agent_terminated")
        if not at_once and self._asked_to_leave(reason):
            self.take(recovery.Leaving(reason))
        else:
            self._end_politely(reason)

    def _asked_to_leave(self, reason: str) -> bool:
        """Have ranks that save do so and leave at one step; false when they cannot be asked."""
        is_first = _LEAVE not in self._later and self.state.verdict is None
        if not is_first or not self._crew.alive or not self._grace or not self._saved.may_exist:
            return False
        parting = Parting(self._selector, self._end_politely)
        if not parting.ask(self._request.app_id, reason, self._grace):
            return False
        self._later.put(_LEAVE, self._grace, self._end_politely)
        return True

    def _end_politely(self, reason: str = "agent_terminated") -> None:
        self._later.drop(_LEAVE)
        self.take(recovery.Cancelled(reason))  # what was said first stands

    def _on_message(self, name: str, message: Message) -> None:
        match message["say"]:
            case "started":
                self._started(message)
            case "start_failed":
                self._start_failed(name, message)
            case "exited":
                self._exited(self._current(message))
            case "store":
                self._waiting.met(name, message)
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
                self._lost_bytes += message["lost"]
                self._uncleared.discard(name)
                self._nodes.let_go(name)

    def _started(self, message: Message) -> None:
        for rank in self._current(message):
            self._waiting.heard(_key(rank))
            self._crew.heard(place_of(rank))
        self._ledger.ranks_started(
            Started(
                place=place_of(rank),
                rank=self._rank(place_of(rank)),
                process=_process(rank),
                attempt=rank["attempt"],
                warmth=rank["warm"],
                life=rank["life"],
                generation=rank["generation"],
            )
            for rank in self._current(message)
        )

    def _current(self, message: Message) -> list[Mapping[str, Any]]:
        """Return the ranks of a message that are there now."""
        return self._crew.current(message["ranks"])

    def _start_failed(self, name: str, message: Message) -> None:
        key = ReplicaKey(message["role"], message["index"])
        cause = f"cannot_start: {message['cause']}"
        self._waiting.heard(key)
        self._crew.forget(key)
        if message["bad_node"] and self.state.spares:
            self._nodes.give_up(name, cause)
        else:
            self.take(StartFailed(key, cause))

    def _exited(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Take note of all that ended together before anything is done about one of them."""
        self._live.tell(ranks)
        phases = [self.state.replicas[_key(rank)].phase for rank in ranks]
        fresh = [
            rank
            for rank, phase in zip(ranks, phases, strict=True)
            if rank["code"] and phase is recovery.Phase.UP
        ]
        if not self._live.is_watched:
            self.came([_key(rank) for rank in fresh], [rank.get("step", -1) for rank in fresh])
        for rank, phase in zip(ranks, phases, strict=True):
            self._crew.ended(place_of(rank))
            self._waiting.heard(_key(rank))  # one that was taken back has ended all the same
            if "error" in rank or rank in fresh:
                place = place_of(rank)
                cause = self._cause(place, rank["code"])
                self._reports.failed(place, self._rank(place), rank, cause)
            self._reports.ended(rank)
            told = phase is not recovery.Phase.UP
            self._rank_ended(rank, AppState.CANCELLED if told else AppState.FAILED)
        if ranks and self._live.is_watched:
            self._live.ended()

    def came(self, keys: Sequence[ReplicaKey], steps: Sequence[int] = ()) -> None:
        """Say how far those came that are about to be failures, where somebody asks."""
        if not keys or not self._request.saves or self.state.verdict is not None:
            return
        saved, step = self._saved.newest(), max(steps, default=-1)
        for key in dict.fromkeys(keys):
            lived = time.monotonic() - self._began.get(key, time.monotonic())
            self.take(recovery.Reached(key, Point(saved, step, lived)))

    def _rank_ended(self, rank: Mapping[str, Any], failure: AppState) -> None:
        place, code = place_of(rank), rank["code"]
        self._ledger.rank_ended(place, failure if code else AppState.SUCCEEDED, code)
        if not self._live.is_watched:
            self.take(self.exit_of(place, code))

    def exit_of(self, place: Place, code: int) -> recovery.RankExited:
        """Return a rank's end in the words of the rule."""
        return recovery.RankExited(key_of(place), place[2], code == 0, self._cause(place, code))

    def _cause(self, place: Place, code: int) -> str:
        how = f"exit_code_{code}" if code >= 0 else f"exit_signal_{-code}"
        if self._request.role(place[0]).distributed:
            return f"{how}_rank_{self._rank(place)}"
        return f"{how}_{place[0]}_{place[1]}"

    def _rank(self, place: Place) -> int:
        role, index, local_rank = place
        group = self._group(role)
        return group.rank(index, local_rank) if index in group.members else local_rank

    def _quiet(self, name: str) -> None:
        """Take note that a node has printed nothing for too long; all of them: that is a hang."""
        now, limit = time.monotonic(), self._request.idle_timeout
        self._quiet_at[name] = now
        busy = {self._crew.at(place) for place in self._crew.alive}
        if busy and all(self._quiet_at.get(node, 0.0) > now - limit for node in busy):
            self._quiet_at.clear()
            self.came([key_of(place) for place in self._crew.alive])
            self.take(recovery.Idle(f"idle_output_{limit:g}s"))

    # What is done about it.

    def take(self, *events: recovery.Event) -> None:
        """Have the rule decide about these, one after the other, and do what it says."""
        is_at_it = bool(self._events)
        self._events.extend(events)
        if any(isinstance(event, _ENDS_WATCH) for event in events):
            self._events.extend(self._live.untold())
        if is_at_it:
            return  # whoever is at it takes these too
        while self._events:
            restarts = self.state.restarts
            self.state, effects = recovery.step(self.state, self._events[0])
            if self.state.restarts != restarts:
                self._restarts(self._events[0])
            for effect in effects:
                self._do(effect)
            self._order_starts()
            self._events.popleft()

    def _do(self, effect: recovery.Effect) -> None:
        match effect:
            case Start():
                self._starts.append(effect)
            case Stop():
                self._stop(effect.key)
            case Replace():
                facts = {"lost": effect.lost, "spare": effect.spare, "evidence": effect.evidence}
                self._ledger.note("node_replaced", replica=effect.key.index, **facts)
            case Wait():
                due = recovery.Due(effect.number)
                self._later.put(effect.number, effect.seconds, lambda: self.take(due))
                self._ledger.note("backoff", seconds=effect.seconds, reason=self._why)
            case Finish():
                self._verdict = effect.verdict

    def _restarts(self, event: recovery.Event) -> None:
        match event:
            case recovery.RankExited() | recovery.Idle() | recovery.LiveEnded():
                self._why = event.cause
            case recovery.NodeLost():
                self._why = f"node_lost_{event.node}"
        error = self._reports.told(self._why)
        restarts = self.state.restarts
        self._ledger.restarted(restarts, self._live.generation(restarts), self._why, error)

    def _order_starts(self) -> None:
        """Have the replicas started that were decided on together."""
        starts, self._starts = self._starts, []
        again = [start for start in starts if start.attempt > 0]
        is_ready = not again or self._go_on(again)
        for start in starts:
            ranks = self._request.role(start.key.role).ranks_of(start.key.index)
            self._crew.begin(start.key, ranks, start.attempt)
            self._began[start.key] = time.monotonic()
            if is_ready:
                self._waiting.order(start)
        if starts and is_ready:
            self._reports.begin_again()
            self._live.begin(starts[0].attempt)
        elif starts:
            self._not_started(starts)

    def _go_on(self, starts: Sequence[Start]) -> bool:
        """Find out what ranks go on from that are no first ones; false when nobody can tell."""
        from torchloom.errors import LoomError

        attempt = max(start.attempt for start in starts)
        generation = self._live.generation(attempt)
        going = {start.key for start in starts}
        others = {key for key, at in self.state.replicas.items() if at.alive} - going
        try:
            place = self._saved.go_on(generation, self._why, alone=not others)
        except LoomError as error:
            self._why = f"checkpoints_unavailable: {error}"
            return False
        self._waiting.go_on(attempt, place)
        return True

    def _not_started(self, starts: Sequence[Start]) -> None:
        """Take starts that came to nothing for failures, with the usual retries."""
        why = self._why
        for start in starts:
            for place in self._crew.forget(start.key):
                self._events.append(recovery.RankExited(start.key, place[2], False, why))

    def _group(self, role: str) -> Group:
        return Group(self._request.role(role), self.state.members(role))

    def _stop(self, key: ReplicaKey) -> None:
        """End a replica; one that was only about to start is told nothing."""
        if self._waiting.withdraw(key):
            for place in self._crew.forget(key):
                self._events.append(recovery.RankExited(key, place[2], False, "not_started"))
            return
        self._send_stop(key)

    def _send_stop(self, key: ReplicaKey) -> None:
        order = {"do": "stop", "key": [key.role, key.index], "signum": self._polite}
        for node in self._crew.nodes_of(key):
            self._nodes.tell(node, {**order, "grace": self._grace})

    # The end.

    def _clear_up(self) -> None:
        """Have every agent end whatever the app left running there."""
        self._uncleared = set(self._nodes.present) - set(self._nodes.missing())
        code = 0 if self._verdict and self._verdict.state is AppState.SUCCEEDED else 1
        self._nodes.tell_all({"do": "end", "grace": self._grace, "code": code})
        deadline = time.monotonic() + self._grace + _FAREWELL
        while self._uncleared and time.monotonic() < deadline:
            self._turn(max(0.0, deadline - time.monotonic()))
        self._reports.close()
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)
        self._nodes.close()
        self._tunnels.close()
        if not self._request.carrier and self._nodes.lost:  # agent and guard of this very host
            kill_share(Share(self._request.app_id))
            stores.clear(Share(self._request.app_id))


def _token(request: LaunchRequest) -> str:
    """Return what agents of other hosts must know: a new secret, or that of a meeting."""
    if request.carrier is None:
        return ""
    return nonce() if request.carrier.launcher != JOINED else environment()[TOKEN_VARIABLE]


def _key(rank: Mapping[str, Any]) -> ReplicaKey:
    return key_of(place_of(rank))


def _process(rank: Mapping[str, Any]) -> ProcessId | None:
    return ProcessId.from_dict(rank["process"]) if rank["process"] else None


def _vanished(place: Place, life: Life) -> dict[str, Any]:
    """Return the end of a rank that nobody has seen: its agent and its keeper are gone."""
    role, index, local_rank = place
    facts = {"role": role, "index": index, "local_rank": local_rank}
    lived = {"attempt": life[0], "life": life[1]}
    return {**facts, **lived, "code": -int(signal.SIGKILL)}
