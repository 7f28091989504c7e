"""The ranks that were ordered and have not ended: which process of each that is, and where."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torchloom.launch.protocol import ForkRank, RankNote
from torchloom.specs.states import Place, ReplicaKey

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
