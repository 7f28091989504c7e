"""Replace ranks one by one while the others of their group run, by orders of a weaver.

The rule that restarts is not involved: for it all ranks are up until live recovery ends, and then
it is passed the ranks that are gone.
"""

import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.host.sockets import Timers
from torchloom.launch.protocol import (
    EndIncarnation,
    MeetingReady,
    RankNotForked,
    RankProcessReport,
)
from torchloom.launch.records.record_writer import RunRecordWriter
from torchloom.launch.records.request import LaunchRequest, RankGroup
from torchloom.launch.supervisor.nodes import Nodes
from torchloom.launch.supervisor.reports import RankErrors
from torchloom.launch.supervisor.starts import LiveRanks, Starts, key_of
from torchloom.rules import replicas as replica_rules
from torchloom.rules.membership.faults import Fence, admit
from torchloom.rules.replicas import (
    Start,
)
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import Place, ReplicaKey

if TYPE_CHECKING:
    from torchloom.launch.supervisor.plane_link import PlaneLink
    from torchloom.messages.membership import EndProcess, Fork, MakeStore, ProcessReports, Watch
    from torchloom.messages.plane import Head, Message, Register

_OPEN, _FALL_BACK = "open the line", "fall back"


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One process of a rank, as `messages.membership.ProcessReport` reports it."""

    rank: int
    incarnation: int
    node: str
    code: int | None = None
    step: int = -1
    why: str = ""


class RecoveryActions(Protocol):
    """What the launch process does by order of a weaver."""

    def may_be_watched(self) -> bool:
        """Tell whether all ranks of the attempt run, and none is to end."""

    def asked_for(self, generation: int) -> None:
        """Take note of a generation before anything is done for it."""

    def fork(self, rank: int, incarnation: int, generation: int, node: str) -> str:
        """Have a process of a rank started; return why that cannot be, if so."""

    def end_incarnation(self, rank: int, incarnation: int, reason: str) -> None: ...

    def make_store(self, generation: int, node: str) -> None: ...

    def watched(self, is_live: bool, epoch: int) -> None:
        """Take note that ends are a weaver's business from now on, or no longer."""

    def deal_with_it(self) -> None:
        """Do about ends what is done without a weaver; ends watching."""

    def restart(self, reason: str, cause: str) -> None:
        """Start all again: live recovery has failed."""

    def room(self) -> Mapping[str, int]:
        """Return how many ranks each node can have."""


class RecoveryClient:
    """The client of live recovery: reports incarnations to a weaver, takes its orders."""

    def __init__(
        self,
        request: LaunchRequest,
        selector: selectors.BaseSelector,
        later: Timers,
        actions: RecoveryActions,
    ) -> None:
        self.is_on = False
        self._request = request
        self._selector = selector
        self._later = later
        self._actions = actions
        self._incarnation = os.urandom(8).hex()
        self._attempt = request.attempt
        self._fence = Fence(generation=request.generation)
        self._processes: dict[tuple[int, int], RankProcess] = {}
        self._lost: dict[str, str] = {}
        self._store = ""
        self._stored = self._wanted = -1
        self._received_at = 0.0
        self._link: PlaneLink | None = None

    # Events of the launch process.

    def begin(self, attempt: int, generation: int, nodes: Mapping[int, str]) -> None:
        """All ranks of an attempt are about to be started, each on its node."""
        self.is_on = False
        self._later.drop(_FALL_BACK)
        self._attempt = attempt
        self._fence = replace(self._fence, generation=generation)
        self._processes = {(rank, 1): RankProcess(rank, 1, node) for rank, node in nodes.items()}
        self._lost, self._store = {}, ""
        self._stored = self._wanted = -1
        if self._link is not None:
            self._link.introduce()
        else:
            self._later.put(_OPEN, 0.0, self._open)

    def ended(self, rank: int, incarnation: int, code: int, step: int = -1, why: str = "") -> None:
        """Take note of an end; `tell` says it."""
        known = self._processes.get((rank, incarnation))
        if known is not None and known.code is None:
            self._processes[rank, incarnation] = replace(known, code=code, step=step, why=why)

    def node_lost(self, name: str, evidence: str) -> None:
        """A node is gone with all it had."""
        self._lost[name] = evidence
        self.tell()

    def met(self, generation: int, store: str) -> None:
        """A store is there; of two for one generation the first counts."""
        if store and generation == self._wanted and self._stored != generation:
            self._store, self._stored = store, generation
            self.tell()

    def tell(self) -> None:
        """Send the state at once."""
        if self._link is not None:
            self._link.tell()

    def unanswered(self) -> None:
        """Wait for a weaver's order about an end or a lost node, for a limited time."""
        if self.is_on and _FALL_BACK not in self._later:
            self._received_at = time.monotonic()
            self._later.put(_FALL_BACK, self._request.live_patience, self._fall_back)

    @property
    def is_unanswered(self) -> bool:
        """Tell whether the last process of a rank is gone."""
        newest = (self.newest(rank) for rank in {one.rank for one in self._processes.values()})
        return any(one and (one.code is not None or one.node in self._lost) for one in newest)

    def stop(self) -> dict[str, str]:
        """Be watched no longer; return the nodes that were lost meanwhile, and how one knows."""
        was_on, self.is_on = self.is_on, False
        self._later.drop(_FALL_BACK)
        return dict(self._lost) if was_on else {}

    def newest(self, rank: int) -> RankProcess | None:
        """Return the last process of a rank."""
        processes = [one for one in self._processes.values() if one.rank == rank]
        return max(processes, key=lambda one: one.incarnation, default=None)

    def steps(self) -> list[int]:
        """Return how far those came that have ended."""
        return [one.step for one in self._processes.values() if one.code]

    def close(self) -> None:
        """Close the link."""
        self._later.drop(_OPEN)
        self._later.drop(_FALL_BACK)
        if self._link is not None:
            self._link.close()
            self._link = None

    # Reports to the weaver.

    def _open(self) -> None:
        from torchloom.launch.supervisor.plane_link import PlaneLink

        self._link = PlaneLink(
            self._selector, self._later, self._register, self._reports_message, self.take
        )
        self._link.open()

    def _head(self) -> "Head":
        from torchloom.messages.base import NO_RANK, VERSION, Head

        job, role = self._request.app_id, self._request.roles[0].name
        return Head(VERSION, job, self._fence.generation, NO_RANK, self._incarnation, role)

    def _register(self) -> "Register":
        from torchloom.messages.plane import Register

        me = ProcessIdentity.mine()
        return Register(
            self._head(),
            role=self._request.roles[0].name,
            local_rank=-1,
            node=host_name(),
            pid=me.pid,
            started=int(me.started) if str(me.started).isdigit() else 0,
            replica="",
            devices=(),
            boundary="none",
            world_size=len({one.rank for one in self._processes.values()}),
            attempt=self._attempt,
        )

    def _reports_message(self) -> "ProcessReports":
        from torchloom.messages.membership import ProcessReport, ProcessReports

        lives = sorted(self._processes.values(), key=lambda one: (one.rank, one.incarnation))
        return ProcessReports(
            self._head(),
            attempt=self._attempt,
            lives=tuple(
                ProcessReport(one.rank, one.incarnation, one.node, one.code, one.step, one.why)
                for one in lives
            ),
            room=dict(self._actions.room()),
            lost=tuple(self._lost),
            store=self._store,
            stored=self._stored,
        )

    # Orders of the weaver.

    def take(self, order: "Message") -> None:
        """Carry out a weaver's order, unless it is of an older weaver, job or attempt."""
        from torchloom.messages.membership import EndProcess, Fork, MakeStore, Restart, Watch

        assert isinstance(order, Watch | Fork | MakeStore | EndProcess | Restart)
        is_ours = order.head.job == self._request.app_id and order.attempt == self._attempt
        if not is_ours:
            return
        self._fence, is_admitted = admit(self._fence, order.epoch, order.head.generation)
        if not is_admitted:
            return
        self._received_at = time.monotonic()
        self._actions.asked_for(order.head.generation)
        match order:
            case Watch():
                self._watch(order)
            case Restart():
                self._actions.restart(order.reason, order.cause)
            case Fork() if self.is_on:
                self._fork(order)
            case MakeStore() if self.is_on:
                self._make_store(order)
            case EndProcess() if self.is_on:
                self._end_process(order)
        self.tell()

    def _watch(self, order: "Watch") -> None:
        if order.is_live == self.is_on:
            return
        if not order.is_live:
            self._actions.watched(False, order.epoch)
            self._actions.deal_with_it()
        elif self._actions.may_be_watched():
            self.is_on = True
            self._actions.watched(True, order.epoch)

    def _fork(self, order: "Fork") -> None:
        """Have a process started, once; where one of its rank still lives, not at all."""
        newest = self.newest(order.rank)
        if newest is None or newest.incarnation >= order.life:
            return
        if newest.code is None and newest.node not in self._lost:
            return
        name = (order.rank, order.life)
        self._processes[name] = RankProcess(order.rank, order.life, order.node)
        why = self._actions.fork(order.rank, order.life, order.head.generation, order.node)
        if why:
            self._processes[name] = replace(self._processes[name], code=1, why=why)

    def _make_store(self, order: "MakeStore") -> None:
        generation = order.head.generation
        if self._wanted != generation:
            self._wanted, self._store, self._stored = generation, "", -1
        if self._stored != generation:
            self._actions.make_store(generation, order.node)

    def _end_process(self, order: "EndProcess") -> None:
        """End a process; one that there never was is as good as killed."""
        known = self._processes.get((order.rank, order.life))
        if known is None:
            newest = self.newest(order.rank)
            node = newest.node if newest else ""
            killed = RankProcess(order.rank, order.life, node, -int(signal.SIGKILL))
            self._processes[order.rank, order.life] = killed
        elif known.code is None:
            self._actions.end_incarnation(order.rank, order.life, order.reason)

    def _fall_back(self) -> None:
        """Handle ends without a weaver if none has sent an order for too long."""
        if not self.is_unanswered:
            return
        left = self._received_at + self._request.live_patience - time.monotonic()
        if left > 0:
            self._later.put(_FALL_BACK, left, self._fall_back)
        else:
            self._actions.watched(False, self._fence.epoch)
            self._actions.deal_with_it()


class RecoveryRule(Protocol):
    """What decides about restarts, and the events that it takes."""

    @property
    def state(self) -> replica_rules.State: ...

    def take(self, *events: replica_rules.Event) -> None: ...

    def came(self, keys: Sequence[ReplicaKey], steps: Sequence[int] = ()) -> None: ...

    def exit_of(self, place: Place, code: int) -> replica_rules.RankExited: ...


class RankReplacement:
    """The newcomers of a run, and what its launch process does about ends while it is watched."""

    def __init__(
        self,
        request: LaunchRequest,
        selector: selectors.BaseSelector,
        later: Timers,
        live_ranks: LiveRanks,
        nodes: Nodes,
        starts: Starts,
        writer: RunRecordWriter,
        reports: RankErrors,
        rule: RecoveryRule,
    ) -> None:
        self._request = request
        self._live_ranks = live_ranks
        self._nodes = nodes
        self._starts = starts
        self._writer = writer
        self._reports = reports
        self._rule = rule
        self._client = RecoveryClient(request, selector, later, self)
        self._attempt = request.attempt
        self._ahead = request.generation - request.attempt

    @property
    def is_watched(self) -> bool:
        """Tell whether ends are a weaver's business."""
        return self._client.is_on

    def generation(self, attempt: int) -> int:
        """Return the generation that an attempt begins with: one that there never was."""
        return attempt + self._ahead

    # What happens.

    def begin(self, attempt: int) -> None:
        """All ranks have been ordered for an attempt."""
        self._attempt = attempt
        if self._request.is_live:
            nodes = {rank: self._live_ranks.at(place) for rank, place in enumerate(self._places())}
            self._client.begin(attempt, self.generation(attempt), nodes)

    def tell(self, ranks: Sequence[RankProcessReport]) -> None:
        """Tell a weaver of ends before all else: it answers while they are written down."""
        for rank in ranks:
            facts = (rank.incarnation, rank.code or 0, rank.last_step)
            self._client.ended(self._rank(rank.place), *facts)
        if ranks:
            self._client.tell()

    def ended(self) -> None:
        """See whether those were the last, and all is well; else a weaver has to answer."""
        newest = [self._client.newest(rank) for rank in range(len(self._places()))]
        if all(one is not None and one.code == 0 for one in newest):
            self._rule.take(*self.untold())
        else:
            self._client.unanswered()

    def lost(self, node: str, evidence: str) -> None:
        """A node is gone."""
        if self.is_watched:
            self._live_ranks.lose(node)
        self._client.node_lost(node, evidence)
        self._client.unanswered()

    def found(self, name: str, there: set[Place]) -> None:
        """Repeat the orders of newcomers that the agent before may not have received.

        Outside live recovery they are dropped.
        """
        for place, order in self._live_ranks.to_come(name).items():
            if place in there:
                continue
            if self.is_watched:
                self._nodes.tell(name, order)
            else:
                self._live_ranks.acknowledge(place)

    def met(self, message: MeetingReady) -> None:
        """A later generation has its store."""
        if message.attempt == self._attempt:
            self._client.met(message.generation, message.store)

    def not_forked(self, message: RankNotForked) -> None:
        """A newcomer could not be started."""
        if not self._live_ranks.current([message]):
            return
        place, number, why = message.place, message.incarnation, message.cause
        rank = self._rank(place)
        self._live_ranks.ended(place)
        self._client.ended(rank, number, 1, why=why)
        self._client.tell()
        self._writer.note("not_forked", rank=rank, life=number, reason=why)
        if self.is_watched:
            self.ended()
        else:
            self._rule.take(self._rule.exit_of(place, 1))

    def untold(self) -> list[replica_rules.Event]:
        """End live recovery, and return the events that the rule has not been passed meanwhile."""
        if not self.is_watched:
            return []
        lost = self._client.stop()
        events: list[replica_rules.Event] = [
            replica_rules.NodeLost(node, evidence) for node, evidence in lost.items()
        ]
        for rank, place in enumerate(self._places()):
            newest = self._client.newest(rank)
            if self._rule.state.seats[key_of(place)] in lost:
                self._dismiss(place)  # the rule takes it down with its node
            elif newest is not None and place not in self._live_ranks.alive:
                code = 1 if newest.code is None else newest.code
                events.append(self._rule.exit_of(place, code))
        return events

    def close(self) -> None:
        self._client.close()

    # What a weaver says.

    def may_be_watched(self) -> bool:
        are_all_there = set(self._places()) == set(self._live_ranks.alive)
        return are_all_there and self._is_up() and self._rule.state.verdict is None

    def asked_for(self, generation: int) -> None:
        if generation > self.generation(self._attempt):
            self._ahead = generation - self._attempt
            self._writer.asked_for(generation)

    def fork(self, rank: int, incarnation: int, generation: int, node: str) -> str:
        if node not in self._nodes.present:
            return f"there is no node {node}"
        place = self._places()[rank]
        order = self._starts.newcomer(self._start(place), place[2], generation, incarnation)
        self._live_ranks.join(place, (self._attempt, incarnation), node, order)
        self._nodes.tell(node, order)
        return ""

    def end_incarnation(self, rank: int, incarnation: int, reason: str) -> None:
        self._end(self._places()[rank], incarnation)
        self._writer.note("life_ended", rank=rank, life=incarnation, reason=reason)

    def make_store(self, generation: int, node: str) -> None:
        order = self._starts.meeting(self._start(self._places()[0]), generation, node)
        self._nodes.tell(node, order)

    def watched(self, is_live: bool, epoch: int) -> None:
        self._writer.note("watched", attempt=self._attempt, is_live=is_live, epoch=epoch)

    def deal_with_it(self) -> None:
        untold = self.untold()
        exits = [event for event in untold if isinstance(event, replica_rules.RankExited)]
        if failed := [event.cause for event in exits if not event.ok]:
            self._reports.began_with(failed[0])
            self._came()
        self._rule.take(*untold)

    def restart(self, reason: str, cause: str) -> None:
        if self._rule.state.verdict is not None or not self._is_up():
            return
        self._writer.note("live_ended", reason=reason, cause=cause)
        self._reports.began_with(reason)
        self._came()
        untold = self.untold()
        lost = [event for event in untold if isinstance(event, replica_rules.NodeLost)]
        gone = [event for event in untold if not isinstance(event, replica_rules.NodeLost)]
        self._rule.take(*lost, replica_rules.LiveEnded(reason or cause), *gone)

    def room(self) -> Mapping[str, int]:
        role = self._request.roles[0]
        most = max(role.ranks_of(index) for index in range(len(role.replicas)))
        seats = self._rule.state.seats
        taken = dict.fromkeys(seats.values(), 0)
        for key, node in seats.items():
            taken[node] += role.ranks_of(key.index)
        return {node: taken.get(node, most) for node in self._nodes.present}

    def _end(self, place: Place, incarnation: int) -> None:
        order = EndIncarnation(place[:2], (place[2], self._attempt, incarnation))
        self._nodes.tell(self._live_ranks.at(place), order)

    def _dismiss(self, place: Place) -> None:
        """End a newcomer that is on another node than its replica was, and ignore its reports."""
        if place in self._live_ranks.alive:
            self._end(place, self._live_ranks.alive[place][1])
            self._live_ranks.ended(place)

    def _is_up(self) -> bool:
        replicas = (self._rule.state.replicas[key_of(place)] for place in self._places())
        return all(replica.phase is replica_rules.ReplicaPhase.UP for replica in replicas)

    def _came(self) -> None:
        keys = dict.fromkeys(key_of(place) for place in self._places())
        self._rule.came(list(keys), self._client.steps())

    def _start(self, place: Place) -> Start:
        return Start(key_of(place), self._attempt)

    def _places(self) -> list[Place]:
        """Return the place of each rank of the group, by its number."""
        role = self._request.roles[0]
        members = self._rule.state.members(role.name)
        return [(role.name, at, local) for at in members for local in range(role.ranks_of(at))]

    def _rank(self, place: Place) -> int:
        group = RankGroup(self._request.role(place[0]), self._rule.state.members(place[0]))
        return group.rank(place[1], place[2]) if place[1] in group.members else -1
