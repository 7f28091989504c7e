"""What ranks, agents and the weaver say to each other: one frozen class a message.

They travel as msgpack arrays with the tag first. A newer torchloom may append fields: older
ones ignore them. Every message has a `Head`, which says of whom it speaks and fences old lives out.
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

# What a rank's threadlet tells its agent.


class Knob(msgspec.Struct, frozen=True, array_like=True):
    """A value that may be changed while the job runs."""

    name: str
    value: Value
    type: Literal["float", "int", "bool", "str", "json"]
    low: float | None = None
    high: float | None = None
    is_used: bool = True  # false: a value of the config that no step has read


class Register(Message, frozen=True, tag="Register"):
    """A rank is there; said again, word for word, whenever somebody may have forgotten."""

    role: str
    local_rank: int
    node: str
    pid: int
    started: int  # the process' start time, in the kernel's ticks
    replica: str  # the replica group it belongs to
    devices: tuple[str, ...]
    boundary: Boundary
    knobs: tuple[Knob, ...] = ()
    world_size: int = 0  # ranks of its group; 0 when it cannot tell
    page: str = ""  # where its agent reads its progress
    hang: dict[str, Value] = {}  # what its job wants when it hangs: "limit", "action"
    life: int = 1  # the how manieth process of its rank in this attempt it is
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
    """The rank is in `step` and will not begin step + 1 + `ahead` without the outcome."""

    command: str
    step: int
    ahead: int


class RankRefusal(Message, frozen=True, tag="Refused"):
    """The rank cannot do what was requested, and why."""

    command: str
    why: str
    is_late: bool = False  # it was decided, and came to nothing here


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
    """The rank's program has come to its end; its exit is the keeper's to tell."""

    step: int


# What a rank is told.


class Planned(msgspec.Struct, frozen=True, array_like=True):
    """A change of knobs that was decided before the rank was there, with the step it acts before.

    One that an earlier generation has `done` is done again, unless another came before it here.
    """

    command: str
    step: int
    payload: dict[str, Value]
    done: bool = False


class Welcome(Message, frozen=True, tag="Welcome"):
    """The weaver knows the rank; these are the changes of its job's knobs, in their order."""

    epoch: int
    changes: tuple[Planned, ...] = ()


class Prepare(Message, frozen=True, tag="Prepare"):
    """Get ready for a command; `payload` is, for a knob, {"name", "value", "hold"}."""

    command: str
    kind: Kind
    payload: dict[str, Value] = {}
    at: int | None = None
    epoch: int = 0  # of the weaver who says it; agents pass nothing on that an old one says


class Write(Message, frozen=True, tag="Write"):
    """Put the outcome into the generation's store, unless another was first, and say which won."""

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
    """The agent has this life's first `upto` records on its disk; all but Register are records.

    It comes after each Register and now and then. Who waits for it before sending, forgets what it
    covers and sends the rest again on a new connection loses nothing when the agent is killed.
    """

    upto: int


# What an agent and the weaver tell each other beside.


class Device(msgspec.Struct, frozen=True, array_like=True):
    """An accelerator or a CPU slot of a node."""

    uuid: str
    kind: Literal["cpu", "cuda", "xpu", "mps"]
    index: int
    memory: int = 0


class Hello(Message, frozen=True, tag="Hello"):
    """An agent is there, with its node's devices and the ranks it knows."""

    agent: str
    host: str
    boot: str
    pid: int
    epoch: int  # the highest it has obeyed
    devices: tuple[Device, ...] = ()
    ranks: tuple[Register, ...] = ()
    cpus: int = 0  # what the node has for jobs of the queue; an agent of one job has nothing
    memory_mb: int = 0


class Greeting(Message, frozen=True, tag="Greeting"):
    """The weaver takes an agent in."""

    agent: str
    epoch: int
    window: int = 64  # batches that may be under way without an answer


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a rank is by its shared page; `moved` is how many seconds ago that changed."""

    head: Head
    step: int
    phase: int
    moved: float
    step_seconds: float


class Heartbeat(Message, frozen=True, tag="Beat"):
    """An agent lives, and so far are its ranks."""

    agent: str
    sent: float
    progress: tuple[Progress, ...] = ()


class Batch(Message, frozen=True, tag="Batch"):
    """Records of one life of one rank, numbered from `first` on without a gap.

    It counts only if the record numbered `follows` is in the database: a batch that was to come
    before it is lost otherwise, and all will be sent again. Numbers that are there are no news.
    """

    agent: str
    first: int
    records: tuple[bytes, ...]
    dropped: int = 0  # metric points that a full spool let go between `follows` and `first`
    follows: int = 0  # 0: whatever is not there by now will not come


class Stored(Message, frozen=True, tag="Stored"):
    """All records of that life up to this number are in the database."""

    epoch: int
    upto: int


class Kill(Message, frozen=True, tag="Kill"):
    """End a rank; its agent has its keeper do it."""

    epoch: int
    signal: int
    reason: str


class DeviceEvent(Message, frozen=True, tag="DeviceEvent"):
    """Somebody who watches hardware says that a device failed, is well again, or is to be left."""

    device: str
    state: Literal["failed", "healthy", "draining"]
    source: str
    reason: str = ""


# What processes are about, for whoever wants to know why nothing goes on.


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


class Look(msgspec.Struct, frozen=True, array_like=True):
    """What was seen of a process at one moment."""

    at: float  # of the agent's monotonic clock
    cpu: float  # seconds that the process has computed so far
    state: str  # the kernel's letter; empty for one that is gone
    waits_in: str = ""  # the kernel's function, where it tells
    source: str = ""  # who told the threads: "py-spy", "threadlet" or nobody
    threads: tuple[Thread, ...] = ()
    note: str = ""  # why it was not seen better
    step: int = -1  # of its page, like the rest; -1 where there is none to read
    phase: int = -1
    still: float = 0.0  # seconds since the page last changed
    lasted: float = 0.0  # seconds that its last step took


class TakeStacks(Message, frozen=True, tag="TakeStacks"):
    """Look twice at these lives, a moment apart, and say what was seen of each."""

    epoch: int
    request: str
    lives: tuple[str, ...]


class Stacks(Message, frozen=True, tag="Stacks"):
    """What an agent saw of one of its ranks."""

    agent: str
    request: str
    looks: tuple[Look, ...] = ()
    is_silent: bool = False  # its threadlet was asked too, and did not answer


class ShowStacks(Message, frozen=True, tag="ShowStacks"):
    """A rank's threadlet is to say what the threads of its process do."""

    request: str


class OwnStacks(Message, frozen=True, tag="OwnStacks"):
    """A threadlet's answer to that. It is no record: nobody keeps or counts it."""

    request: str
    threads: tuple[Thread, ...] = ()


# What is saved: the weaver decides, an agent that sees the store does it.


class Commit(Message, frozen=True, tag="Commit"):
    """Make a draft the checkpoint of its step: all of its shards are written.

    It is said again until it is answered; `manifest` is the text to be committed, zlib-compressed.
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
    """What became of that: where it is, or a code of the error and its words."""

    agent: str
    step: int
    generation: int
    attempt: int
    place: str = ""
    code: str = ""
    why: str = ""


class Remove(Message, frozen=True, tag="Remove"):
    """Delete the checkpoint of a step, if it is still this one; said again until it is answered."""

    epoch: int
    root: str
    step: int
    generation: int
    attempt: int


class Removed(Message, frozen=True, tag="Removed"):
    """It is gone, or why not."""

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
