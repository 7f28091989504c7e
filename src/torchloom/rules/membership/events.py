"""What the rules of a job's membership decide on, and what they order.

Members report with the messages of `messages.membership`, as they travel; `MemberReport` adds which
process sent one. `Send` names the process that an order is about. The rules fill in what they
decide; the weaver adds what it alone knows: the job, the incarnation, its epoch, and where a store
is. Every order may be given twice.
"""

from dataclasses import dataclass

from torchloom.messages.membership import EndProcess, Fork, FromMember, MakeStore, ToMember
from torchloom.rules.membership.election import Cause, Copies, GenerationPlan, RecoveryMode
from torchloom.rules.membership.seats import MemberProcess

# What happened.


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member has sent a message; `copies` are the shards that its node's keeper has for it."""

    who: MemberProcess
    message: FromMember
    copies: Copies = frozenset()

    @property
    def generation(self) -> int:
        return self.message.head.generation


@dataclass(frozen=True, slots=True)
class Exited:
    """A process ended, in a step; a code below zero is a signal."""

    who: MemberProcess
    code: int
    step: int = 0


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """A process that was ordered could not be started."""

    who: MemberProcess
    why: str


@dataclass(frozen=True, slots=True)
class MemberNodeLost:
    """A node is lost with all that ran there, its pages included."""

    node: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A node's agent has registered, again or anew, with the processes that run there.

    `is_fresh` says that its keeper is another one than before: what the node had is lost.
    """

    node: str
    lives: tuple[MemberProcess, ...]
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A process still runs but cannot be helped: it hangs, or its device failed."""

    who: MemberProcess
    reason: str


@dataclass(frozen=True, slots=True)
class StoreMade:
    """The store of a generation can be reached."""

    generation: int


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store of a generation is lost, without a member."""

    generation: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """No older generation commits a checkpoint any more; this is the newest there is."""

    generation: int
    newest: int | None


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint of this step is committed."""

    step: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


Event = (
    MemberReport
    | Exited
    | ForkFailed
    | MemberNodeLost
    | Registered
    | GivenUp
    | StoreMade
    | StoreLost
    | Sealed
    | CheckpointSaved
    | Tick
)


# What to do, in this order.


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a process, or to the launch process about it."""

    who: MemberProcess
    message: ToMember | Fork | MakeStore | EndProcess


@dataclass(frozen=True, slots=True)
class Seal:
    """Have storage refuse what older generations commit, and return its newest checkpoint."""

    generation: int


# What the record makes true; the job's state and its events follow from it.


@dataclass(frozen=True, slots=True)
class GenerationBegan:
    """A generation is over; another is being formed."""

    generation: int
    mode: RecoveryMode
    reason: str


@dataclass(frozen=True, slots=True)
class GenerationCommitted:
    """The generation trains from now on; ranks in `inexact` continue with bits of other ranks."""

    generation: int
    plan: GenerationPlan
    inexact: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RestartBegan:
    """All processes restart, from the newest of their keepers' memory and this checkpoint."""

    generation: int
    attempt: int
    cause: Cause
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job has failed: first because of `reason`, in the end because of `cause`."""

    reason: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """All members have finished."""


Order = Send | Seal
GenerationChange = GenerationBegan | GenerationCommitted | RestartBegan | JobFailed | JobCompleted
