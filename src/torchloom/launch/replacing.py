"""Replace ranks one by one while the others of their group live, on a weaver's word.

The rule that restarts hears nothing of it: for it all ranks are up until that is over, and then it
hears of those that are gone.
"""

import selectors
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torchloom.launch.crew import Crew, key_of, place_of
from torchloom.launch.frames import Message
from torchloom.launch.group import Group
from torchloom.launch.later import Later
from torchloom.launch.ledger import Ledger, Place
from torchloom.launch.nodes import Nodes
from torchloom.launch.reports import Reports
from torchloom.launch.request import LaunchRequest
from torchloom.launch.starts import Starts
from torchloom.launch.watching import Watching
from torchloom.rules import happening
from torchloom.rules.happening import Start
from torchloom.rules.replica import ReplicaKey


class Rule(Protocol):
    """What decides about restarts, and what it is told."""

    @property
    def state(self) -> happening.State: ...

    def take(self, *events: happening.Event) -> None: ...

    def came(self, keys: Sequence[ReplicaKey], steps: Sequence[int] = ()) -> None: ...

    def exit_of(self, place: Place, code: int) -> happening.RankExited: ...


class Replacing:
    """The newcomers of a run, and what its launch process does about ends while it is watched."""

    def __init__(
        self,
        request: LaunchRequest,
        selector: selectors.BaseSelector,
        later: Later,
        crew: Crew,
        nodes: Nodes,
        starts: Starts,
        ledger: Ledger,
        reports: Reports,
        rule: Rule,
    ) -> None:
        self._request = request
        self._crew = crew
        self._nodes = nodes
        self._starts = starts
        self._ledger = ledger
        self._reports = reports
        self._rule = rule
        self._watching = Watching(request, selector, later, self)
        self._attempt = request.attempt
        self._ahead = request.generation - request.attempt

    @property
    def is_watched(self) -> bool:
        """Tell whether ends are a weaver's business."""
        return self._watching.is_on

    def generation(self, attempt: int) -> int:
        """Return the generation that an attempt begins with: one that there never was."""
        return attempt + self._ahead

    # What happens.

    def begin(self, attempt: int) -> None:
        """All ranks have been ordered for an attempt."""
        self._attempt = attempt
        if self._request.is_live:
            nodes = {rank: self._crew.at(place) for rank, place in enumerate(self._places())}
            self._watching.begin(attempt, self.generation(attempt), nodes)

    def tell(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Tell a weaver of ends before all else: it answers while they are written down."""
        for rank in ranks:
            facts = (rank["life"], rank["code"], rank.get("step", -1))
            self._watching.ended(self._rank(place_of(rank)), *facts)
        if ranks:
            self._watching.tell()

    def ended(self) -> None:
        """See whether those were the last, and all is well; else a weaver has to answer."""
        newest = [self._watching.newest(rank) for rank in range(len(self._places()))]
        if all(one is not None and one.code == 0 for one in newest):
            self._rule.take(*self.untold())
        else:
            self._watching.unanswered()

    def lost(self, node: str, evidence: str) -> None:
        """A node is gone."""
        if self.is_watched:
            self._crew.lose(node)
        self._watching.node_lost(node, evidence)
        self._watching.unanswered()

    def found(self, name: str, there: set[Place]) -> None:
        """Order newcomers again that an agent before may not have heard of.

        Those that nobody waits for any more are as good as gone.
        """
        for place, order in self._crew.to_come(name).items():
            if place in there:
                continue
            if self.is_watched:
                self._nodes.tell(name, order)
            else:
                self._crew.heard(place)

    def met(self, message: Message) -> None:
        """A later generation has its store."""
        if message["attempt"] == self._attempt:
            self._watching.met(message["generation"], message["store"])

    def not_forked(self, message: Message) -> None:
        """A newcomer could not be started."""
        if not self._crew.current([message]):
            return
        place, why = place_of(message), str(message["cause"])
        rank = self._rank(place)
        self._crew.ended(place)
        self._watching.ended(rank, message["life"], 1, why=why)
        self._watching.tell()
        self._ledger.note("not_forked", rank=rank, life=message["life"], reason=why)
        if self.is_watched:
            self.ended()
        else:
            self._rule.take(self._rule.exit_of(place, 1))

    def untold(self) -> list[happening.Event]:
        """Be watched no more, and return what the rule has not heard of meanwhile."""
        if not self.is_watched:
            return []
        lost = self._watching.stop()
        events: list[happening.Event] = [
            happening.NodeLost(node, evidence) for node, evidence in lost.items()
        ]
        for rank, place in enumerate(self._places()):
            newest = self._watching.newest(rank)
            if self._rule.state.seats[key_of(place)] in lost:
                self._dismiss(place)  # the rule takes it down with its node
            elif newest is not None and place not in self._crew.alive:
                code = 1 if newest.code is None else newest.code
                events.append(self._rule.exit_of(place, code))
        return events

    def close(self) -> None:
        self._watching.close()

    # What a weaver says.

    def may_be_watched(self) -> bool:
        are_all_there = set(self._places()) == set(self._crew.alive)
        return are_all_there and self._is_up() and self._rule.state.verdict is None

    def asked_for(self, generation: int) -> None:
        if generation > self.generation(self._attempt):
            self._ahead = generation - self._attempt
            self._ledger.asked_for(generation)

    def fork(self, rank: int, life: int, generation: int, node: str) -> str:
        if node not in self._nodes.present:
            return f"there is no node {node}"
        place = self._places()[rank]
        order = self._starts.newcomer(self._start(place), place[2], generation, life)
        self._crew.join(place, (self._attempt, life), node, order)
        self._nodes.tell(node, order)
        return ""

    def end_life(self, rank: int, life: int, reason: str) -> None:
        self._end(self._places()[rank], life)
        self._ledger.note("life_ended", rank=rank, life=life, reason=reason)

    def make_store(self, generation: int, node: str) -> None:
        order = self._starts.meeting(self._start(self._places()[0]), generation, node)
        self._nodes.tell(node, order)

    def watched(self, is_live: bool, epoch: int) -> None:
        self._ledger.note("watched", attempt=self._attempt, is_live=is_live, epoch=epoch)

    def deal_with_it(self) -> None:
        untold = self.untold()
        exits = [event for event in untold if isinstance(event, happening.RankExited)]
        if failed := [event.cause for event in exits if not event.ok]:
            self._reports.began_with(failed[0])
            self._came()
        self._rule.take(*untold)

    def restart(self, reason: str, cause: str) -> None:
        if self._rule.state.verdict is not None or not self._is_up():
            return
        self._ledger.note("live_ended", reason=reason, cause=cause)
        self._reports.began_with(reason)
        self._came()
        untold = self.untold()
        lost = [event for event in untold if isinstance(event, happening.NodeLost)]
        gone = [event for event in untold if not isinstance(event, happening.NodeLost)]
        self._rule.take(*lost, happening.LiveEnded(reason or cause), *gone)

    def room(self) -> Mapping[str, int]:
        role = self._request.roles[0]
        most = max(role.ranks_of(index) for index in range(len(role.replicas)))
        seats = self._rule.state.seats
        taken = dict.fromkeys(seats.values(), 0)
        for key, node in seats.items():
            taken[node] += role.ranks_of(key.index)
        return {node: taken.get(node, most) for node in self._nodes.present}

    def _end(self, place: Place, life: int) -> None:
        named = {"key": list(place[:2]), "life": [place[2], self._attempt, life]}
        self._nodes.tell(self._crew.at(place), {"do": "end_life", **named})

    def _dismiss(self, place: Place) -> None:
        """End a newcomer that is on another node than its replica was, and hear no more of it."""
        if place in self._crew.alive:
            self._end(place, self._crew.alive[place][1])
            self._crew.ended(place)

    def _is_up(self) -> bool:
        replicas = (self._rule.state.replicas[key_of(place)] for place in self._places())
        return all(replica.phase is happening.Phase.UP for replica in replicas)

    def _came(self) -> None:
        keys = dict.fromkeys(key_of(place) for place in self._places())
        self._rule.came(list(keys), self._watching.steps())

    def _start(self, place: Place) -> Start:
        return Start(key_of(place), self._attempt)

    def _places(self) -> list[Place]:
        """Return the place of each rank of the group, by its number."""
        role = self._request.roles[0]
        members = self._rule.state.members(role.name)
        return [(role.name, at, local) for at in members for local in range(role.ranks_of(at))]

    def _rank(self, place: Place) -> int:
        group = Group(self._request.role(place[0]), self._rule.state.members(place[0]))
        return group.rank(place[1], place[2]) if place[1] in group.members else -1
