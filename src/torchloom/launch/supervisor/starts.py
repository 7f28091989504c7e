"""Ranks that were ordered: held until the group's store is ready, repeated until reported, live."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from torchloom.launch.agent.rank_environment import MeetingPoint, group_variables
from torchloom.launch.protocol import (
    ForkRank,
    HostStore,
    PrepareMeeting,
    RankNote,
    RankOrder,
    ReplicaOrder,
    StartReplica,
    StoreHosted,
)
from torchloom.launch.records.record_writer import rank_logs
from torchloom.launch.records.request import LaunchRequest, RankGroup, RoleRequest
from torchloom.launch.supervisor.nodes import Nodes
from torchloom.launch.variables import INCARNATION_VARIABLE, STANDIN_VARIABLE
from torchloom.rules.replicas import (
    Start,
)
from torchloom.sealed import unseal
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import Place, ReplicaKey


def replica_order(
    request: LaunchRequest,
    group: RankGroup,
    start: Start,
    meeting: MeetingPoint,
    file_store: bool,
    resume: str = "",
    generation: int = 0,
) -> ReplicaOrder:
    """Return what starts a replica as a part of its group, which meets there.

    `resume` is the checkpoint that it resumes from, `generation` the membership that it starts in.
    """
    key, role = start.key, group.role
    replica = request.replica(key)
    ranks = tuple(
        RankOrder(
            local_rank,
            rank_logs(request, key, local_rank),
            group_variables(request, group, key, local_rank, start.attempt, meeting, resume),
            dict(enumerate(request.copied)).get(local_rank, 0),
        )
        for local_rank in range(role.ranks_of(key.index))
    )
    return ReplicaOrder(
        role=key.role,
        index=key.index,
        attempt=start.attempt,
        argv=replica.argv,
        cwd=role.cwd or request.cwd,
        ranks=ranks,
        env=unseal(replica.env),
        ports=replica.ports,
        grouped=role.distributed,
        file_store=file_store,
        copies=_copies(request, role, start),
        generation=generation,
    )


def newcomer_order(
    order: ReplicaOrder, local_rank: int, generation: int, incarnation: int
) -> ReplicaOrder:
    """Return what starts one rank of a replica again, while the others of its group live."""
    mine = next(rank for rank in order.ranks if rank.local_rank == local_rank)
    variables = {**mine.variables, INCARNATION_VARIABLE: str(incarnation), STANDIN_VARIABLE: "1"}
    ranks = (replace(mine, variables=variables),)
    return replace(order, ranks=ranks, generation=generation, incarnation=incarnation)


def _copies(request: LaunchRequest, role: RoleRequest, start: Start) -> str:
    """Return the folder of an attempt's copied logs: one a node, which may share disks."""
    run = request.app_id if len(role.replicas) == 1 else f"{request.app_id}_{start.key.index}"
    return f"{request.copies}/{run}/attempt_{start.attempt}" if request.copies else ""


@dataclass(frozen=True, slots=True)
class Seating:
    """How the rule has placed a run at this moment."""

    node_of: Callable[[ReplicaKey], str]
    group: Callable[[str], RankGroup]
    generation: Callable[[int], int]  # of an attempt


class Starts:
    """From a decision to start a replica to the first report of its node's agent about it."""

    def __init__(self, request: LaunchRequest, nodes: Nodes, seating: Seating) -> None:
        self._request = request
        self._nodes = nodes
        self._seating = seating
        self._held: dict[tuple[str, int], list[Start]] = {}  # until their store is there
        self._ordered: dict[ReplicaKey, StartReplica] = {}  # that no agent has reported yet
        self._resume: dict[int, str] = {}  # the checkpoint that each attempt resumes from
        self._met: dict[str, tuple[MeetingPoint, bool]] = {}  # where each role meets, if in a file

    def resume_from(self, attempt: int, place: str) -> None:
        """Set the checkpoint that the ranks of an attempt resume from."""
        self._resume = {attempt: place}

    def order(self, start: Start) -> None:
        """Have a replica started, now or when the store of its group is there."""
        if not self._meets_over_hosts(start.key.role):
            self._send(start, MeetingPoint(), file_store=True)
            return
        meeting = (start.key.role, start.attempt)
        if meeting not in self._held:
            self._held[meeting] = []
            self._ask_for_store(start)
        self._held[meeting].append(start)

    def met(self, name: str, store: StoreHosted) -> None:
        """A store is there: start all that waited for it."""
        meeting = MeetingPoint(self._nodes.address(name), store.port, store.hosted)
        for start in self._held.pop((store.role, store.attempt), []):
            self._send(start, meeting)

    def acknowledge(self, key: ReplicaKey) -> None:
        """An agent has reported a replica: its order need not be repeated."""
        self._ordered.pop(key, None)

    def is_waiting(self, key: ReplicaKey) -> bool:
        """Tell whether a replica's start is held, or not answered."""
        return key in self._ordered or any(
            start.key == key for starts in self._held.values() for start in starts
        )

    def withdraw(self, key: ReplicaKey) -> bool:
        """Take back a start that is held; false if there was none."""
        was_held = False
        for meeting, starts in self._held.items():
            kept = [start for start in starts if start.key != key]
            was_held = was_held or len(kept) < len(starts)
            self._held[meeting] = kept
        return was_held

    def drop(self, key: ReplicaKey) -> None:
        """Forget a replica whose node is gone."""
        self.withdraw(key)
        self.acknowledge(key)

    def repeat(self, name: str, there: set[tuple[str, int]]) -> None:
        """Send a node's new agent what the one before may not have received."""
        for key, order in self._ordered.items():
            if self._seating.node_of(key) == name and (key.role, key.index) not in there:
                self._nodes.tell(name, order)
        for starts in list(self._held.values()):
            if starts and self._seating.node_of(self._head(starts[0])) == name:
                self._ask_for_store(starts[0])

    def newcomer(
        self, start: Start, local_rank: int, generation: int, incarnation: int
    ) -> ForkRank:
        """Return the order of one rank that comes to its group while that is under way."""
        order = self._order(start, *self._met.get(start.key.role, (MeetingPoint(), True)))
        return ForkRank(newcomer_order(order, local_rank, generation, incarnation))

    def meeting(self, start: Start, generation: int, node: str) -> PrepareMeeting:
        """Return the order of a store for a later generation of an attempt."""
        is_file = not self._meets_over_hosts(start.key.role)
        order = replace(self._order(start, MeetingPoint(), is_file), generation=generation)
        address = "" if is_file else self._nodes.address(node)
        return PrepareMeeting(order, address)

    def _meets_over_hosts(self, role: str) -> bool:
        group = self._seating.group(role)
        seats = {self._seating.node_of(ReplicaKey(role, index)) for index in group.members}
        return group.role.distributed and len(seats) > 1

    def _ask_for_store(self, start: Start) -> None:
        head = self._head(start)
        node = self._seating.node_of(head)
        order = self._order(Start(head, start.attempt), MeetingPoint())
        self._nodes.tell(node, HostStore(order, self._nodes.address(node)))

    def _head(self, start: Start) -> ReplicaKey:
        """Return the replica on whose node a group meets."""
        return ReplicaKey(start.key.role, self._seating.group(start.key.role).members[0])

    def _send(self, start: Start, meeting: MeetingPoint, file_store: bool = False) -> None:
        self._met[start.key.role] = (meeting, file_store)
        self._ordered[start.key] = StartReplica(self._order(start, meeting, file_store))
        self._nodes.tell(self._seating.node_of(start.key), self._ordered[start.key])

    def _order(self, start: Start, meeting: MeetingPoint, file_store: bool = False) -> ReplicaOrder:
        return replica_order(
            self._request,
            self._seating.group(start.key.role),
            start,
            meeting,
            file_store,
            self._resume.get(start.attempt, ""),
            self._seating.generation(start.attempt),
        )


Incarnation = tuple[int, int]  # the attempt, and the number of the rank's process in it, from 1
_Note = TypeVar("_Note", bound=RankNote)


class LiveRanks:
    """Which process of each rank runs. A replica's ranks run on its node; a newcomer may not."""

    def __init__(self, seat_of: Callable[[ReplicaKey], str]) -> None:
        self.alive: dict[Place, Incarnation] = {}
        self._seat_of = seat_of
        self._moved: dict[Place, str] = {}
        self._forks: dict[Place, ForkRank] = {}  # orders that no agent has reported yet

    def begin(self, key: ReplicaKey, ranks: int, attempt: int) -> None:
        """All ranks of a replica are about to be started."""
        for local_rank in range(ranks):
            place = (key.role, key.index, local_rank)
            self.alive[place] = (attempt, 1)
            self._moved.pop(place, None)
            self._forks.pop(place, None)

    def join(self, place: Place, incarnation: Incarnation, node: str, order: ForkRank) -> None:
        """One process of a rank is ordered while others live."""
        self.alive[place] = incarnation
        self._forks[place] = order
        self._moved[place] = node

    def at(self, place: Place) -> str:
        """Return the node of a rank."""
        return self._moved.get(place) or self._seat_of(ReplicaKey(place[0], place[1]))

    def current(self, ranks: Sequence[_Note]) -> list[_Note]:
        """Return the reports that are about the process of a rank that runs now."""
        return [one for one in ranks if self.alive.get(one.place) == (one.attempt, one.incarnation)]

    def acknowledge(self, place: Place) -> None:
        """An agent has reported a newcomer: its order need not be repeated."""
        self._forks.pop(place, None)

    def ended(self, place: Place) -> None:
        self.alive.pop(place, None)
        self._forks.pop(place, None)

    def forget(self, key: ReplicaKey) -> list[Place]:
        """Remove a replica; return which ranks of it there were."""
        places = [place for place in self.alive if place[:2] == (key.role, key.index)]
        for place in places:
            self.ended(place)
        return places

    def lose(self, node: str) -> None:
        """A node is lost with all of its ranks."""
        for place in [place for place in self.alive if self.at(place) == node]:
            self.ended(place)

    def on(self, node: str) -> dict[Place, Incarnation]:
        """Return the ranks on a node."""
        return {
            place: incarnation
            for place, incarnation in self.alive.items()
            if self.at(place) == node
        }

    def nodes_of(self, key: ReplicaKey) -> set[str]:
        """Return where ranks of a replica may be."""
        moved = {node for place, node in self._moved.items() if place[:2] == (key.role, key.index)}
        return moved | {self._seat_of(key)}

    def to_come(self, node: str) -> dict[Place, ForkRank]:
        """Return the orders of newcomers that a node's agent has not reported."""
        return {place: order for place, order in self._forks.items() if self.at(place) == node}


def key_of(place: Place) -> ReplicaKey:
    return ReplicaKey(place[0], place[1])
