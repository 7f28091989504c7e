"""The ranks that were ordered and have not ended: which process of each that is, and where."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchloom.launch.records.record_writer import Place
from torchloom.launch.wire import WireMessage
from torchloom.specs.states import ReplicaKey

Life = tuple[int, int]  # the attempt, and the how manieth process of its rank in it


class LiveRanks:
    """Who is there. A replica's ranks are on its seat; a newcomer may be on another node."""

    def __init__(self, seat_of: Callable[[ReplicaKey], str]) -> None:
        self.alive: dict[Place, Life] = {}
        self._seat_of = seat_of
        self._moved: dict[Place, str] = {}
        self._forks: dict[Place, WireMessage] = {}  # orders that no agent has spoken of yet

    def begin(self, key: ReplicaKey, ranks: int, attempt: int) -> None:
        """All ranks of a replica are about to be started."""
        for local_rank in range(ranks):
            place = (key.role, key.index, local_rank)
            self.alive[place] = (attempt, 1)
            self._moved.pop(place, None)
            self._forks.pop(place, None)

    def join(self, place: Place, life: Life, node: str, order: WireMessage) -> None:
        """One process of a rank is ordered while others live."""
        self.alive[place] = life
        self._forks[place] = order
        self._moved[place] = node

    def at(self, place: Place) -> str:
        """Return the node of a rank."""
        return self._moved.get(place) or self._seat_of(ReplicaKey(place[0], place[1]))

    def current(self, ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return those of an agent's words that are about who is there now."""
        return [rank for rank in ranks if self.alive.get(place_of(rank)) == _life(rank)]

    def heard(self, place: Place) -> None:
        """An agent has spoken of a newcomer: its order need not be said again."""
        self._forks.pop(place, None)

    def ended(self, place: Place) -> None:
        self.alive.pop(place, None)
        self._forks.pop(place, None)

    def forget(self, key: ReplicaKey) -> list[Place]:
        """Have nothing more to do with a replica; return which ranks of it there were."""
        places = [place for place in self.alive if place[:2] == (key.role, key.index)]
        for place in places:
            self.ended(place)
        return places

    def lose(self, node: str) -> None:
        """A node is gone with all it had."""
        for place in [place for place in self.alive if self.at(place) == node]:
            self.ended(place)

    def on(self, node: str) -> dict[Place, Life]:
        """Return who is on a node."""
        return {place: life for place, life in self.alive.items() if self.at(place) == node}

    def nodes_of(self, key: ReplicaKey) -> set[str]:
        """Return where ranks of a replica may be."""
        moved = {node for place, node in self._moved.items() if place[:2] == (key.role, key.index)}
        return moved | {self._seat_of(key)}

    def to_come(self, node: str) -> dict[Place, WireMessage]:
        """Return the orders of newcomers that a node's agent has not spoken of."""
        return {place: order for place, order in self._forks.items() if self.at(place) == node}


def place_of(rank: Mapping[str, Any]) -> Place:
    """Return whose an agent's word is."""
    return (rank["role"], rank["index"], rank["local_rank"])


def key_of(place: Place) -> ReplicaKey:
    return ReplicaKey(place[0], place[1])


def _life(rank: Mapping[str, Any]) -> Life:
    return (rank["attempt"], rank["life"])
