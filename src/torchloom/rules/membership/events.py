"""Name what is said when the members of a job change: by nodes, by ranks, by the one who decides.

Every word of a process says which one it is (`Who`) and of which generation it speaks; every order
is to one process and may be given twice.
"""

from dataclasses import dataclass

from torchloom.rules.membership.election import Cause, GenerationPlan, MemberPosition, RecoveryMode
from torchloom.rules.membership.seats import MemberProcess

# What happened.


@dataclass(frozen=True, slots=True)
class Exited:
    """The keeper says that a process ended, and in which step; below zero the code is a signal."""

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
    """A node is gone with all that ran there, its pages included."""

    node: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A node's agent has come (back), with the processes of the job that run there.

    With another keeper than before there is nothing left of what the node had.
    """

    node: str
    lives: tuple[MemberProcess, ...]
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A process that lives is held to be beyond help: it hangs, or its device failed."""

    who: MemberProcess
    reason: str


@dataclass(frozen=True, slots=True)
class Broke:
    """A rank has an exception in a step and asks whose it is."""

    who: MemberProcess
    generation: int
    is_collective: bool


@dataclass(frozen=True, slots=True)
class Arrived:
    """A member has left all older groups, or come to its steps for the first time."""

    who: MemberProcess
    generation: int
    standing: MemberPosition


@dataclass(frozen=True, slots=True)
class Restored:
    """A member has all that the plan gives it, checked by hash, and its page is written."""

    who: MemberProcess
    generation: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A member could not take what the plan gives it."""

    who: MemberProcess
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Started:
    """A member trains in this generation."""

    who: MemberProcess
    generation: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A member has no step left and waits for the others."""

    who: MemberProcess
    generation: int


@dataclass(frozen=True, slots=True)
class StoreMade:
    """The store of a generation can be reached."""

    generation: int


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store of a generation is gone, without a member."""

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
    Exited
    | ForkFailed
    | MemberNodeLost
    | Registered
    | GivenUp
    | Broke
    | Arrived
    | Restored
    | Refused
    | Started
    | Finished
    | StoreMade
    | StoreLost
    | Sealed
    | CheckpointSaved
    | Tick
)


# What to do about it, in this order.


@dataclass(frozen=True, slots=True)
class NotifyMembers:
    """Tell a member: older generations are over; leave, and say where you stand for this one."""

    who: MemberProcess
    generation: int


@dataclass(frozen=True, slots=True)
class MakeStore:
    """Have a node make the store of a generation, unless it has."""

    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Have storage refuse what older generations commit, and tell its newest checkpoint."""

    generation: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Have a node start a process, unless it has; live ones begin on a stand-in group."""

    who: MemberProcess
    generation: int
    mode: RecoveryMode


@dataclass(frozen=True, slots=True)
class Transfer:
    """Have a member join the generation's group and take what the plan gives it."""

    who: MemberProcess
    generation: int
    plan: GenerationPlan


@dataclass(frozen=True, slots=True)
class Go:
    """Have a member train from this step on."""

    who: MemberProcess
    generation: int
    start: int


@dataclass(frozen=True, slots=True)
class LetStand:
    """Tell a rank that its generation stands in spite of its exception."""

    who: MemberProcess
    generation: int


@dataclass(frozen=True, slots=True)
class Release:
    """All have finished: have a member end its program."""

    who: MemberProcess
    generation: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Have a node end a process at once; no other life of its rank is meant."""

    who: MemberProcess
    reason: str


# What is told with the record that makes it so; the job's own life and its events follow from it.


@dataclass(frozen=True, slots=True)
class Began:
    """A generation is over; another is being formed."""

    generation: int
    mode: RecoveryMode
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The generation acts from now on; ranks in `inexact` go on with bits that are not theirs."""

    generation: int
    plan: GenerationPlan
    inexact: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Restart:
    """All processes start again, from the newest of their keepers' memory and this checkpoint."""

    generation: int
    attempt: int
    cause: Cause
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class FailJob:
    """The job has failed: first because of `reason`, in the end of `cause`."""

    reason: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class EndGeneration:
    """The job is complete."""


Order = NotifyMembers | MakeStore | Seal | Fork | Transfer | Go | LetStand | Release | Kill
Told = Began | Commit | Restart | FailJob | EndGeneration
