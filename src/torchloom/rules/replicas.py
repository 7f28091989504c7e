"""What happens to an app and what can be done about it: all that a decision depends on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum

from torchloom.specs.api import AppState, RetryPolicy
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import ReplicaKey

_CLEARLY = 1.5  # an attempt that lasted so many times as long is not the same crash a moment later


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """How far an attempt came: the newest checkpoint, its last step, how long it lasted."""

    saved: int = -1
    step: int = -1
    lived: float = 0.0

    def is_beyond(self, other: "ProgressMark") -> bool:
        longer = self.lived > other.lived * _CLEARLY
        return self.saved > other.saved or self.step > other.step or longer

    def furthest(self, other: "ProgressMark") -> "ProgressMark":
        saved, step = max(self.saved, other.saved), max(self.step, other.step)
        return ProgressMark(saved, step, max(self.lived, other.lived))


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """The attempts of a scope: how far any came, and how many in a row came no further."""

    furthest: ProgressMark | None = None
    stuck: int = 0

    def then(self, point: ProgressMark) -> "RestartHistory":
        """Add how far one more attempt has come."""
        if self.furthest is None:
            return RestartHistory(point)
        stuck = 0 if point.is_beyond(self.furthest) else self.stuck + 1
        return RestartHistory(point.furthest(self.furthest), stuck)


@dataclass(frozen=True, slots=True)
class RoleRule:
    """What the app's description promises for one role."""

    name: str
    replicas: int = 1
    ranks: int = 1
    max_retries: int = 0
    policy: RetryPolicy = RetryPolicy.APPLICATION
    min_replicas: int | None = None  # as many may continue when others have failed for good
    min_group: int | None = None  # as many may start again as a smaller group
    uneven: tuple[int, ...] = ()  # ranks of each replica, where they differ
    backoff: float = 0.0  # seconds before the first restart, doubled before each further one
    crash_loop: int = 0  # so many restarts in a row that got no further are enough; 0: never

    def ranks_of(self, index: int) -> int:
        return self.uneven[index] if self.uneven else self.ranks


Scope = tuple[str, ...]  # under which name retries are counted


class ReplicaPhase(Enum):
    """Where one replica is."""

    DOWN = "down"
    UP = "up"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: its phase, the ranks that run, and how often it was restarted."""

    phase: ReplicaPhase = ReplicaPhase.DOWN
    alive: frozenset[int] = frozenset()
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class AppVerdict:
    """How the app ends."""

    state: AppState
    reason: str


@dataclass(frozen=True, slots=True)
class State:
    """All that a decision depends on."""

    roles: Mapping[str, RoleRule]
    replicas: Mapping[ReplicaKey, Replica]
    retries: Mapping[Scope, int] = field(default_factory=dict)
    # each starts when all of it is down, and so many seconds later
    restarting: Mapping[frozenset[ReplicaKey], float] = field(default_factory=dict)
    resting: Mapping[int, frozenset[ReplicaKey]] = field(default_factory=dict)  # until `WaitOver`
    rests: int = 0
    lives: Mapping[Scope, RestartHistory] = field(default_factory=dict)
    reached: Mapping[Scope, ProgressMark] = field(default_factory=dict)  # in the present attempt
    generation: int = 0  # of the first start
    verdict: AppVerdict | None = None
    finished: bool = False
    begun: bool = False
    seats: Mapping[ReplicaKey, str] = field(default_factory=dict)  # the node of each replica
    spares: tuple[str, ...] = ()
    dropped: frozenset[ReplicaKey] = frozenset()  # the group continues without them
    lost: Mapping[str, str] = field(default_factory=dict)  # nodes that are lost, and the evidence

    @property
    def restarts(self) -> int:
        """Return how many restarts there were, in earlier attempts of the run too."""
        return self.generation + sum(self.retries.values())

    def members_on(self, node: str) -> list[ReplicaKey]:
        """Return the replicas that are placed on a node."""
        return [key for key, at in self.seats.items() if at == node and key not in self.dropped]

    def members(self, role: str) -> tuple[int, ...]:
        """Return the replicas that make up a role's group now."""
        keys = (key for key in self.replicas if key.role == role and key not in self.dropped)
        return tuple(sorted(key.index for key in keys))


# What happened.


@dataclass(frozen=True, slots=True)
class Begin:
    """The app may start."""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank ended; `cause` names how, `ok` whether as it should."""

    key: ReplicaKey
    rank: int
    ok: bool
    cause: str = ""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A replica could not be started and what there was of it is killed; a retry would not help."""

    key: ReplicaKey
    cause: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is lost, or unusable, with all that ran there; `evidence` says how that is known."""

    node: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing was printed for longer than the app may be silent."""

    cause: str


@dataclass(frozen=True, slots=True)
class LiveEnded:
    """Live recovery has ended; the exits of ranks that ended are reported after it."""

    cause: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The app is to end, or its time is over: then it has failed."""

    reason: str
    state: AppState = AppState.CANCELLED


@dataclass(frozen=True, slots=True)
class Leaving:
    """The app ends by itself, on request; nothing is restarted any more."""

    reason: str
    state: AppState = AppState.CANCELLED


@dataclass(frozen=True, slots=True)
class Reached:
    """A replica has come so far; reported before its end."""

    key: ReplicaKey
    point: ProgressMark


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The time of a `Wait` has passed."""

    number: int


Event = (
    Begin
    | RankExited
    | StartFailed
    | NodeLost
    | Idle
    | LiveEnded
    | Cancelled
    | Leaving
    | Reached
    | WaitOver
)


# What to do about it.


@dataclass(frozen=True, slots=True)
class Start:
    """Start all ranks of a replica."""

    key: ReplicaKey
    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End all ranks of a replica: politely, then not."""

    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing runs any more and nothing will."""

    verdict: AppVerdict


@dataclass(frozen=True, slots=True)
class Replace:
    """A replica moves from a lost node to a spare one; without one, its group continues smaller."""

    key: ReplicaKey
    lost: str
    spare: str | None
    evidence: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Report `WaitOver` with this number after so many seconds."""

    number: int
    seconds: float


Effect = Start | Stop | Finish | Replace | Wait


def initial(roles: Iterable[RoleRule], nodes: Sequence[str] = ("",), generation: int = 0) -> State:
    """Return the state of an app of which nothing was started yet.

    One node takes all replicas; of several, each takes one in turn and those left over are spares.
    An app that continues an earlier one begins with the next generation.
    """
    rules = {role.name: role for role in roles}
    keys = [ReplicaKey(role.name, i) for role in rules.values() for i in range(role.replicas)]
    spread = list(nodes) if len(nodes) > 1 else [nodes[0]] * len(keys)
    seats = dict(zip(keys, spread, strict=False))
    spares = tuple(node for node in nodes if node not in seats.values())
    replicas = {key: Replica(attempt=generation) for key in keys}
    return State(rules, replicas, seats=seats, spares=spares, generation=generation)
