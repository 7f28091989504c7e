"""The messages between ranks, agents and the weaver: one frozen class each.

They travel as msgpack arrays with the tag first. A newer torchloom may append fields, which older
ones ignore. Every message has a `Head`, which names its rank and fences old incarnations out.
"""

from typing import Literal, TypeAlias

import msgspec

from torchloom.messages.base import NO_RANK as NO_RANK
from torchloom.messages.base import VERSION as VERSION
from torchloom.messages.base import Head as Head
from torchloom.messages.base import Message as Message
from torchloom.messages.base import Value as Value
from torchloom.messages.base import tag_of as tag_of
from torchloom.messages.membership import ToLaunch, ToMember

Boundary: TypeAlias = Literal["none", "attached", "api"]
Kind: TypeAlias = Literal["knob", "pause", "resume", "stop", "checkpoint", "digest"]

# From a rank's threadlet to its agent.


class Knob(msgspec.Struct, frozen=True, array_like=True):
    """A value that may be changed while the job runs."""

    name: str
    value: Value
    type: Literal["float", "int", "bool", "str", "json"]
    low: float | None = None
    high: float | None = None
    is_used: bool = True  # false: a value of the config that no step has read


class Register(Message, frozen=True, tag="Register"):
    """A rank is running; sent again unchanged whenever a receiver may have lost it."""

    role: str
    local_rank: int
    node: str
    pid: int
    started: int  # the process' start time, in the kernel's ticks
    replica: str  # the replica group it belongs to
    devices: tuple[str, ...]
    boundary: Boundary
    knobs: tuple[Knob, ...] = ()
    world_size: int = 0  # ranks of its group; 0 when it does not know
    page: str = ""  # where its agent reads its progress
    hang: dict[str, Value] = {}  # what its job wants when it hangs: "limit", "action"
    life: int = 1  # its number among the processes of its rank in this attempt, from 1
    attempt: int = 0


class Metrics(Message, frozen=True, tag="Metrics"):
    """Numbers of several steps: each row is (step, unix seconds, one value a name or None)."""

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class Event(Message, frozen=True, tag="Event"):
    """Something happened once: a NaN, a collective error, a first boundary, an exit."""

    kind: str
    step: int
    time: float
    facts: dict[str, Value] = {}


class Ready(Message, frozen=True, tag="Ready"):
    """The rank is in `step` and will not begin step + 1 + `ahead` without an outcome."""

    command: str
    step: int
    ahead: int


class RankRefusal(Message, frozen=True, tag="Refused"):
    """The rank cannot do what was requested, and why."""

    command: str
    why: str
    is_late: bool = False  # it was decided, and failed here


class Decided(Message, frozen=True, tag="Decided"):
    """What the generation's store holds for a command: its step, or None for an abort."""

    command: str
    effective: int | None


class Applied(Message, frozen=True, tag="Applied"):
    """A command took effect on this rank, in this step, with these values."""

    command: str
    step: int
    before: Value = None
    after: Value = None


class Goodbye(Message, frozen=True, tag="Goodbye"):
    """The rank's program has ended; its keeper reports the exit."""

    step: int


# To a rank.


class Planned(msgspec.Struct, frozen=True, array_like=True):
    """A change of knobs that was decided before the rank started, with the step it acts before.

    One that an earlier generation has `done` is done again, unless another came before it here.
    """

    command: str
    step: int
    payload: dict[str, Value]
    done: bool = False


class Welcome(Message, frozen=True, tag="Welcome"):
    """The weaver has registered the rank; these are the changes of its job's knobs, in order."""

    epoch: int
    changes: tuple[Planned, ...] = ()


class Prepare(Message, frozen=True, tag="Prepare"):
    """Get ready for a command; `payload` is, for a knob, {"name", "value", "hold"}."""

    command: str
    kind: Kind
    payload: dict[str, Value] = {}
    at: int | None = None
    epoch: int = 0  # of the weaver that sends it; agents drop what an older weaver sends


class Write(Message, frozen=True, tag="Write"):
    """Put the outcome into the generation's store unless one is there, and report which won."""

    command: str
    effective: int
    epoch: int = 0


class Outcome(Message, frozen=True, tag="Outcome"):
    """What the store holds for a command; None is an abort."""

    command: str
    effective: int | None
    why: str = ""
    epoch: int = 0


class Kept(Message, frozen=True, tag="Kept"):
    """The agent has this incarnation's first `upto` records on its disk; Register is no record.

    It follows each Register, and is sent now and then. A rank drops what it covers and sends the
    rest again on a new connection, so that nothing is lost when the agent is killed.
    """

    upto: int


# Between an agent and the weaver.


class Device(msgspec.Struct, frozen=True, array_like=True):
    """An accelerator or a CPU slot of a node."""

    uuid: str
    kind: Literal["cpu", "cuda", "xpu", "mps"]
    index: int
    memory: int = 0


class Hello(Message, frozen=True, tag="Hello"):
    """An agent registers, with its node's devices and the ranks it knows."""

    agent: str
    host: str
    boot: str
    pid: int
    epoch: int  # the highest it has accepted
    devices: tuple[Device, ...] = ()
    ranks: tuple[Register, ...] = ()
    cpus: int = 0  # what the node has for jobs of the queue; 0 for an agent of one job
    memory_mb: int = 0


class Greeting(Message, frozen=True, tag="Greeting"):
    """The weaver has registered an agent."""

    agent: str
    epoch: int
    window: int = 64  # batches that may be unanswered


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a rank is by its shared page; `moved` is how many seconds ago that changed."""

    head: Head
    step: int
    phase: int
    moved: float
    step_seconds: float


class Heartbeat(Message, frozen=True, tag="Beat"):
    """An agent is running; `progress` is how far its ranks are."""

    agent: str
    sent: float
    progress: tuple[Progress, ...] = ()


class Batch(Message, frozen=True, tag="Batch"):
    """Records of one incarnation of a rank, numbered from `first` on without a gap.

    It counts only if the record numbered `follows` is in the database: otherwise an earlier batch
    is lost, and all will be sent again. Records that are in the database already are ignored.
    """

    agent: str
    first: int
    records: tuple[bytes, ...]
    dropped: int = 0  # metric points that a full spool dropped between `follows` and `first`
    follows: int = 0  # 0: earlier records that are missing will not come


class Stored(Message, frozen=True, tag="Stored"):
    """All records of that incarnation up to this number are in the database."""

    epoch: int
    upto: int


class Kill(Message, frozen=True, tag="Kill"):
    """End a rank; its agent has its keeper do it."""

    epoch: int
    signal: int
    reason: str


class DeviceEvent(Message, frozen=True, tag="DeviceEvent"):
    """A monitor of hardware reports that a device failed, is healthy, or is to be drained."""

    device: str
    state: Literal["failed", "healthy", "draining"]
    source: str
    reason: str = ""


# Stacks, to find out why a job makes no progress.


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of a stack; `text` is the line of the program, where it was read."""

    function: str
    file: str
    line: int
    text: str = ""


class Thread(msgspec.Struct, frozen=True, array_like=True):
    """What one thread is doing, the innermost call first."""

    name: str
    is_main: bool
    frames: tuple[Frame, ...] = ()


class ProcessSample(msgspec.Struct, frozen=True, array_like=True):
    """A sample of a process at one moment."""

    at: float  # of the agent's monotonic clock
    cpu: float  # CPU seconds of the process so far
    state: str  # the kernel's letter; empty for one that has ended
    waits_in: str = ""  # the kernel's function, where it is known
    source: str = ""  # where the threads are from: "py-spy", "threadlet" or empty
    threads: tuple[Thread, ...] = ()
    note: str = ""  # why the sample is incomplete
    step: int = -1  # of its page, like the rest; -1 without a page
    phase: int = -1
    still: float = 0.0  # seconds since the page last changed
    lasted: float = 0.0  # seconds that its last step took


class TakeStacks(Message, frozen=True, tag="TakeStacks"):
    """Take two samples of each of these incarnations, a moment apart, and report them."""

    epoch: int
    request: str
    lives: tuple[str, ...]


class Stacks(Message, frozen=True, tag="Stacks"):
    """The samples that an agent took of one of its ranks."""

    agent: str
    request: str
    looks: tuple[ProcessSample, ...] = ()
    is_silent: bool = False  # its threadlet was requested too, and did not reply


class ShowStacks(Message, frozen=True, tag="ShowStacks"):
    """A rank's threadlet is to report the stacks of its process."""

    request: str


class OwnStacks(Message, frozen=True, tag="OwnStacks"):
    """A threadlet's reply to that. It is no record: it is neither kept nor counted."""

    request: str
    threads: tuple[Thread, ...] = ()


# Checkpoints: the weaver decides, an agent that can reach the storage does it.


class Commit(Message, frozen=True, tag="Commit"):
    """Make a draft the checkpoint of its step: all of its shards are written.

    It is sent again until it is answered; `manifest` is the text to be committed, zlib-compressed.
    With `clears` nothing that older generations have written is to be committed any more.
    """

    epoch: int
    root: str
    step: int
    generation: int
    attempt: int
    manifest: bytes
    clears: bool = False


class Committed(Message, frozen=True, tag="Committed"):
    """The result of a Commit: where the checkpoint is, or an error's code and text."""

    agent: str
    step: int
    generation: int
    attempt: int
    place: str = ""
    code: str = ""
    why: str = ""


class Remove(Message, frozen=True, tag="Remove"):
    """Delete the checkpoint of a step, if it is still this one; sent again until it is answered."""

    epoch: int
    root: str
    step: int
    generation: int
    attempt: int


class Removed(Message, frozen=True, tag="Removed"):
    """The result of a Remove: empty, or an error's code and text."""

    agent: str
    step: int
    generation: int
    attempt: int
    code: str = ""
    why: str = ""


FromRank: TypeAlias = Register | Metrics | Event | Ready | RankRefusal | Decided | Applied | Goodbye
ToRank: TypeAlias = Welcome | Prepare | Write | Outcome | Kept | ShowStacks | ToMember
FromAgent: TypeAlias = Hello | Heartbeat | Batch | DeviceEvent | Stacks | Committed | Removed
ToAgent: TypeAlias = (
    Greeting
    | Stored
    | Kill
    | Welcome
    | Prepare
    | Write
    | Outcome
    | TakeStacks
    | Commit
    | Remove
    | ToMember
    | ToLaunch
)
