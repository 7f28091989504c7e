"""The seats of a job: the node and the process of every rank, and which of them are lost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class MemberProcess:
    """One process of a rank: its number among them, from 1, and the node where it runs."""

    rank: int
    life: int
    node: str


@dataclass(frozen=True, slots=True)
class MemberSeat:
    """The place of a rank in a job, and the process that has it."""

    rank: int
    node: str  # empty while no node has room
    life: int = 1
    is_gone: bool = False  # its process ended, or its node is lost
    is_ending: bool = False  # its process is being killed
    has_left: bool = False  # its program ended as it should
    is_new: bool = False  # its process never trained

    @property
    def who(self) -> MemberProcess:
        return MemberProcess(self.rank, self.life, self.node)

    @property
    def is_up(self) -> bool:
        """Return whether its process counts: it runs, or is ordered, and is to continue."""
        return not (self.is_gone or self.is_ending)


Seats = tuple[MemberSeat, ...]  # by rank


def seat_of(seats: Seats, who: MemberProcess) -> MemberSeat | None:
    """Return the seat of a process; None if it was replaced, or never had one."""
    if not 0 <= who.rank < len(seats):
        return None
    seat = seats[who.rank]
    return seat if (seat.life, seat.node) == (who.life, who.node) else None


def put(seats: Seats, *changed: MemberSeat) -> Seats:
    """Return the seats with some of them changed."""
    by_rank = {seat.rank: seat for seat in changed}
    return tuple(by_rank.get(seat.rank, seat) for seat in seats)


def ended(seats: Seats) -> Seats:
    """Return the seats with every process that runs being killed."""
    return tuple(replace(s, is_ending=s.is_ending or (s.is_up and bool(s.node))) for s in seats)


def settled(seats: Seats) -> Seats:
    """Return the seats with every process one that has trained."""
    return tuple(replace(seat, is_new=False) for seat in seats)


def survivors(seats: Seats) -> list[MemberSeat]:
    """Return the seats whose processes have trained and can continue."""
    return [seat for seat in seats if seat.is_up and not seat.is_new]


def seat_newcomers(seats: Seats, room: Mapping[str, int], lost: Iterable[str]) -> Seats:
    """Give every seat whose process has ended a new one: where it was, or where there is room."""
    gone_nodes = frozenset(lost)
    taken = {node: 0 for node in sorted(room) if node not in gone_nodes}
    for seat in seats:
        if seat.node in taken:
            taken[seat.node] += 1
    for seat in seats:
        if seat.node and not seat.is_gone:
            continue
        node = seat.node
        if node not in taken:
            node = next((n for n, used in taken.items() if used < room[n]), "")
            taken.update({node: taken[node] + 1} if node else {})
        if node or seat.is_gone:
            seats = put(seats, MemberSeat(seat.rank, node, seat.life + 1, is_new=True))
    return seats
