"""Decide which job runs next: by priority, then in the order of submission, never half a job.

No job overtakes one that waits for room, so that a big one gets its turn. A job does not hold up
others while its owner's quota or a lost node keeps it from running at all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Need:
    """How many workers, and what each of them must have."""

    workers: int
    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node has, or what of it is free."""

    cpus: int
    memory_mb: int = 0
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What a job is given of one node."""

    node: str
    workers: int
    cpus: int = 0
    memory_mb: int = 0
    gpus: tuple[str, ...] = ()


Rooms = Mapping[str, NodeCapacity]


def place(need: Need, free: Rooms) -> tuple[NodeShare, ...] | None:
    """Return a share for every node that is needed; None when there is no room for all."""
    fits = {name: count for name, room in free.items() if (count := fit(need, room))}
    if sum(fits.values()) < need.workers:
        return None
    shares, left = [], need.workers
    while left:
        enough = [name for name, count in fits.items() if count >= left]
        names, best = (enough, min) if enough else (list(fits), max)
        name = best(names, key=lambda name: (fits[name], name))
        workers = min(left, fits.pop(name))
        shares.append(_share(need, name, workers, free[name]))
        left -= workers
    return tuple(shares)


def fit(need: Need, room: NodeCapacity) -> int:
    """Return for how many of the workers there is room on one node."""
    limits = [room.cpus // need.cpus] if need.cpus else [need.workers]
    if need.gpus:
        limits.append(len(room.gpus) // need.gpus)
    if need.memory_mb:
        limits.append(room.memory_mb // need.memory_mb)
    return max(0, min(limits))


def free(rooms: Rooms, shares: Iterable[NodeShare]) -> dict[str, NodeCapacity]:
    """Return what is left of nodes; shares of nodes that are not there count for nothing."""
    left = dict(rooms)
    for share in shares:
        if share.node in left:
            left[share.node] = _less_share(left[share.node], share)
    return left


def shortage(need: Need, rooms: Rooms) -> str:
    """Return what nodes lack to ever run this, if nothing else ran; empty when they could."""
    there = sum(fit(need, room) for room in rooms.values())
    if there >= need.workers:
        return ""
    each = " and ".join(_words(need))
    what = f" with {each} each" if each else ""
    return f"needs {_count(need.workers)}{what}, the cluster has {there if rooms else 'no node'}"


def _share(need: Need, node: str, workers: int, room: NodeCapacity) -> NodeShare:
    gpus = room.gpus[: workers * need.gpus]
    return NodeShare(node, workers, workers * need.cpus, workers * need.memory_mb, gpus)


def _less_share(room: NodeCapacity, share: NodeShare) -> NodeCapacity:
    gpus = tuple(gpu for gpu in room.gpus if gpu not in share.gpus)
    return NodeCapacity(room.cpus - share.cpus, room.memory_mb - share.memory_mb, gpus)


def _words(need: Need) -> list[str]:
    words = []
    if need.cpus > 1:
        words.append(f"{need.cpus} CPUs")
    if need.gpus:
        words.append(f"{need.gpus} GPU{'s' * (need.gpus > 1)}")
    if need.memory_mb:
        words.append(f"{need.memory_mb} MB")
    return words


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue; `number` is its place in the order of submission."""

    job: str
    owner: str
    need: Need
    priority: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that has its shares."""

    owner: str
    shares: tuple[NodeShare, ...]

    @property
    def workers(self) -> int:
        return sum(share.workers for share in self.shares)


@dataclass(frozen=True, slots=True)
class State:
    """All that a decision depends on."""

    nodes: Mapping[str, NodeCapacity] = field(default_factory=dict)  # those that are up, whole
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    placed: Mapping[str, Placed] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)  # workers that an owner may have
    submitted: int = 0
    is_settled: bool = False  # all that could be given room have it; not so when read from a disk
    blocked: tuple[int, int] | None = None  # the turn of the first who waits for room

    def free(self) -> dict[str, NodeCapacity]:
        """Return what no job has of the nodes that are up."""
        shares = (share for placed in self.placed.values() for share in placed.shares)
        return free(self.nodes, shares)

    def order(self) -> list[Waiting]:
        """Return the queue, the next job first."""
        return sorted(self.waiting.values(), key=_turn)

    def workers_of(self, owner: str) -> int:
        return sum(placed.workers for placed in self.placed.values() if placed.owner == owner)


# What happened.


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job is submitted; one that is known already is not submitted again."""

    job: str
    owner: str
    need: Need
    priority: int = 0


@dataclass(frozen=True, slots=True)
class JobGone:
    """A job has ended, or was withdrawn."""

    job: str


@dataclass(frozen=True, slots=True)
class JobsGone:
    """Jobs are cancelled at once: none of them is given the room that another one leaves."""

    jobs: frozenset[str]


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node is there, or has changed."""

    name: str
    room: NodeCapacity


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node is gone; jobs that have a share of it keep it until they leave."""

    name: str


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """An owner may have so many workers from now on; no number means as many as there are."""

    owner: str
    workers: int | None


Event = JobSubmitted | JobGone | JobsGone | NodeUp | NodeDown | QuotaSet


# What to do about it.


@dataclass(frozen=True, slots=True)
class Assign:
    """Start a job on these shares."""

    job: str
    shares: tuple[NodeShare, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """A job can never run here, for a reason that its owner is to read."""

    job: str
    reason: str


Effect = Assign | Refuse


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Handle one event; return the new state and what to do, in order."""
    match event:
        case JobSubmitted():
            return _submitted(state, event)
        case JobGone(job):
            return _left(state, frozenset((job,)))
        case JobsGone(jobs):
            return _left(state, jobs)
        case NodeUp(name, room):
            state = replace(state, nodes={**state.nodes, name: room})
        case NodeDown(name):
            state = replace(state, nodes=_without(state.nodes, name))
        case QuotaSet(owner, None):
            state = replace(state, quotas=_without(state.quotas, owner))
        case QuotaSet(owner, int(workers)):
            state = replace(state, quotas={**state.quotas, owner: workers})
    return settle(state)


def settle(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Resume from a state that was read from disk, and place the jobs that fit."""
    return _settle(state, _in_turn(state))


def reasons(state: State) -> dict[str, str]:
    """Return what every waiting job waits for, the next job first."""
    found, keeps, ahead, first = {}, _Keeping(state), 0, ""
    for one in state.order():
        if reason := keeps(one):
            found[one.job] = reason
            continue
        more = f" and {ahead - 1} more" if ahead > 1 else ""
        found[one.job] = f"waits behind {first}{more}" if ahead else _no_room(state, one)
        ahead, first = ahead + 1, first or one.job
    return found


class _Keeping:
    """What besides room keeps jobs waiting: the same for all of one owner that need the same."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[tuple[str, Need], str] = {}

    def __call__(self, one: Waiting) -> str:
        alike = (one.owner, one.need)
        if alike not in self._known:
            self._known[alike] = _never(self._state, one) or _over_quota(self._state, one)
        return self._known[alike]


def _no_room(state: State, one: Waiting) -> str:
    room = sum(fit(one.need, room) for room in state.free().values())
    return f"waits for room: needs {one.need.workers} workers, {room} would fit now"


def _submitted(state: State, event: JobSubmitted) -> tuple[State, tuple[Effect, ...]]:
    if event.job in state.waiting or event.job in state.placed:
        return state, ()
    number = state.submitted + 1
    one = Waiting(event.job, event.owner, event.need, event.priority, number)
    state = replace(state, submitted=number)
    if reason := _never(state, one):
        return state, (Refuse(event.job, reason),)
    state = replace(state, waiting={**state.waiting, event.job: one})
    if not state.is_settled:
        return settle(state)
    if state.blocked is not None and state.blocked < _turn(one):
        return state, ()  # nothing has changed for those before it
    return _settle(state, [] if _over_quota(state, one) else [one], state.blocked)


def _left(state: State, jobs: frozenset[str]) -> tuple[State, tuple[Effect, ...]]:
    """Remove jobs; the others are tried again only where their room may have changed."""
    leaving = [state.waiting[job] for job in jobs if job in state.waiting]
    has_room = any(job in state.placed for job in jobs)
    held_up = any(_turn(one) == state.blocked for one in leaving)
    if leaving:
        state = replace(state, waiting=_without_all(state.waiting, jobs))
    if has_room:
        state = replace(state, placed=_without_all(state.placed, jobs))
    if state.is_settled and not has_room and not held_up:
        return state, ()  # it waited for its turn, its quota or a lost node, and delayed no other
    return settle(state)


def _settle(
    state: State, in_turn: Iterable[Waiting], blocked: tuple[int, int] | None = None
) -> tuple[State, tuple[Effect, ...]]:
    """Give room to jobs in their order, until one has to wait for it."""
    effects: list[Effect] = []
    for one in in_turn:
        if _over_quota(state, one):
            continue  # since this turn began its owner was given something
        shares = place(one.need, state.free())
        if shares is None:
            blocked = _turn(one)
            break
        placed = {**state.placed, one.job: Placed(one.owner, shares)}
        state = replace(state, waiting=_without(state.waiting, one.job), placed=placed)
        effects.append(Assign(one.job, shares))
    return replace(state, is_settled=True, blocked=blocked), tuple(effects)


def _in_turn(state: State) -> list[Waiting]:
    """Return the jobs that wait for room alone, in their order."""
    keeps = _Keeping(state)
    return [one for one in state.order() if not keeps(one)]


def _turn(one: Waiting) -> tuple[int, int]:
    return (-one.priority, one.number)


def _never(state: State, one: Waiting) -> str:
    """Return why a job could not run if it were alone; empty when it could."""
    quota = state.quotas.get(one.owner)
    if quota is not None and one.need.workers > quota:
        return f"unschedulable: needs {one.need.workers} workers, {one.owner} may have {quota}"
    lack = shortage(one.need, state.nodes)
    return f"unschedulable: {lack}" if lack else ""


def _over_quota(state: State, one: Waiting) -> str:
    quota = state.quotas.get(one.owner)
    has = state.workers_of(one.owner)
    if quota is None or has + one.need.workers <= quota:
        return ""
    return f"waits for a quota: {one.owner} has {has} of {quota} workers"


def _without_all(values: Mapping[str, T], names: frozenset[str]) -> dict[str, T]:
    return {key: value for key, value in values.items() if key not in names}


def _without(values: Mapping[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in values.items() if key != name}
