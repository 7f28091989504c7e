"""The messages between supervisor, job agents, keeper and zygote: one frozen class each, as JSON.

A message is a JSON object with a tag: `"do": "signal"` marks a request, `"say": "exited"` a report
or a reply. Each receiver has a table of the classes that it takes, because two links may use one
tag for different messages. `decode` refuses with BadFrame what does not fit its class, ignores
fields that it does not know, and returns Unknown for a tag that is not in the table: the other end
may be older or newer. The keeper runs in the user's interpreter, so this module needs the standard
library alone; what decoding needs is derived from a class when it is first decoded.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from types import UnionType
from typing import Any, ClassVar, TypeVar

from torchloom.launch.host.identity import ProcessIdentity
from torchloom.launch.wire import BadFrame, WireMessage
from torchloom.specs.dataclass import dataclass
from torchloom.specs.states import Place, ReplicaKey

# Fields whose name in JSON is another one than here.
WIRE_NAMES: Mapping[str, str] = {
    "number": "id",
    "incarnation": "life",
    "registration": "seat",
    "output": "beside",
    "warmth": "warm",
    "cold_reason": "cold",
}
# Fields that are absent from the JSON while they are None; others are `null` then.
LEFT_OUT = frozenset({"error", "step", "role", "index", "if_idle"})


class LaunchMessage:
    """What can be sent; `tag` is the key and the value that tell its kind."""

    __slots__ = ()
    tag: ClassVar[tuple[str, str]]

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object."""
        key, kind = self.tag
        return {key: kind, **_encoded(self)}


# Parts of messages.


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank: its local rank, its folder below the log folder, and its own variables."""

    local_rank: int
    logs: str
    variables: Mapping[str, str]
    copied: int = 0  # streams that are written a second time: bit 1 stdout, bit 2 stderr


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """All ranks of a replica on one node in one attempt, or one of them in a later incarnation."""

    role: str
    index: int
    attempt: int
    argv: tuple[str, ...]
    cwd: str
    ranks: tuple[RankOrder, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # the role's own: overrides all others
    ports: Mapping[str, int] = field(default_factory=dict)
    grouped: bool = False  # the ranks form a torch.distributed group
    file_store: bool = False  # and meet in a file of their own host
    copies: str = ""  # the folder of this attempt's copied logs, as torchrun lays them out
    generation: int = 0
    incarnation: int = 1

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.role, self.index)


@dataclass(frozen=True, slots=True)
class OutputRouting:
    """Where a rank's output goes besides its log: a prefix on the screen, a folder of copies."""

    rank: str = ""
    copies: str = ""
    copied: int = 0  # as in RankOrder


@dataclass(frozen=True, slots=True)
class RankNote:
    """What identifies a rank's process; the keeper stores it for an agent that comes later."""

    role: str
    index: int
    local_rank: int
    attempt: int
    incarnation: int
    generation: int = 0
    logs: str = ""  # where its output is sent, when it is not written on its node
    directory: str = ""
    output: OutputRouting = OutputRouting()
    warmth: str = ""  # "warm", or "cold" and why

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.role, self.index)

    @property
    def place(self) -> Place:
        return (self.role, self.index, self.local_rank)


@dataclass(frozen=True, slots=True)
class RankProcessReport(RankNote):
    """The state of a rank's process: running while it has no exit code."""

    code: int | None = None
    process: ProcessIdentity | None = None
    error: tuple[str, float] | None = None  # its error file: the text, and when it was written
    step: int | None = None  # the last step of one that has ended; -1: unknown

    @property
    def last_step(self) -> int:
        return -1 if self.step is None else self.step


@dataclass(frozen=True, slots=True)
class ChildReport:
    """A process of a keeper, and how many of the descriptors that follow are its outputs."""

    number: int
    note: Mapping[str, Any]
    pid: int
    started: str
    code: int | None
    kept: int
    cold_reason: str = ""  # why it was executed though the keeper could fork it


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The end of a keeper's process."""

    number: int
    code: int


# From the supervisor to a job agent.


@dataclass(frozen=True, slots=True)
class ProofRequest(LaunchMessage):
    """Prove that you know the job's token."""

    tag = ("do", "prove")
    challenge: str


@dataclass(frozen=True, slots=True)
class AppIdReply(LaunchMessage):
    """The id of the app, for a launch that joins."""

    tag = ("do", "tell")
    app_id: str


@dataclass(frozen=True, slots=True)
class JobSettings(LaunchMessage):
    """What an agent must know of the job before it starts ranks."""

    tag = ("do", "job")
    log_dir: str
    marker: str
    quiet_limit: float
    orphan_limit: float
    proof: str
    uplink: str


@dataclass(frozen=True, slots=True)
class StartReplica(LaunchMessage):
    """Start all ranks of a replica."""

    tag = ("do", "start")
    order: ReplicaOrder


@dataclass(frozen=True, slots=True)
class HostStore(LaunchMessage):
    """Start the store in which an attempt's ranks meet over hosts."""

    tag = ("do", "store")
    order: ReplicaOrder
    address: str


@dataclass(frozen=True, slots=True)
class ForkRank(LaunchMessage):
    """Start one rank while the others of its group run."""

    tag = ("do", "fork")
    order: ReplicaOrder


@dataclass(frozen=True, slots=True)
class PrepareMeeting(LaunchMessage):
    """Provide the store for a later generation of an attempt."""

    tag = ("do", "meet")
    order: ReplicaOrder
    address: str


@dataclass(frozen=True, slots=True)
class EndIncarnation(LaunchMessage):
    """Kill one process of a rank, named by its local rank, attempt and incarnation."""

    tag = ("do", "end_life")
    key: tuple[str, int]
    incarnation: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class StopReplica(LaunchMessage):
    """Signal a replica, and kill what is left of it after the grace."""

    tag = ("do", "stop")
    key: tuple[str, int]
    signum: int
    grace: float


@dataclass(frozen=True, slots=True)
class SignalRanks(LaunchMessage):
    """Signal every rank of the node."""

    tag = ("do", "signal")
    signum: int


@dataclass(frozen=True, slots=True)
class EndJob(LaunchMessage):
    """End all that the job has on the node, and leave with this exit code."""

    tag = ("do", "end")
    grace: float
    code: int


# From a job agent to the supervisor.


@dataclass(frozen=True, slots=True)
class AgentHello(LaunchMessage):
    """An agent has come, with the ranks that one before it has started."""

    tag = ("say", "hello")
    host: str
    process: ProcessIdentity
    ranks: tuple[RankProcessReport, ...]
    challenge: str = ""
    registration: str | None = None  # what all incarnations of one node's agent have in common
    place: int | None = None  # the node's number, where it is known


@dataclass(frozen=True, slots=True)
class AgentProof(LaunchMessage):
    """The answer to a ProofRequest."""

    tag = ("say", "proof")
    proof: str


@dataclass(frozen=True, slots=True)
class AppIdRequest(LaunchMessage):
    """A launch that joins asks for the id of the app."""

    tag = ("say", "ask")


@dataclass(frozen=True, slots=True)
class PlaneRequest(LaunchMessage):
    """A node agent asks to be let through to the plane."""

    tag = ("say", "plane")
    node: str
    key: str
    challenge: str


@dataclass(frozen=True, slots=True)
class RanksStarted(LaunchMessage):
    """Ranks have a process: those of a whole replica, or one that was forked."""

    tag = ("say", "started")
    ranks: tuple[RankProcessReport, ...]
    role: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStartFailed(LaunchMessage):
    """A rank of a replica could not be started; on a `bad_node` none will be."""

    tag = ("say", "start_failed")
    role: str
    index: int
    cause: str
    bad_node: bool


@dataclass(frozen=True, slots=True)
class RankNotForked(RankNote, LaunchMessage):
    """One rank could not be started while the others of its group run."""

    tag = ("say", "not_forked")
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RanksExited(LaunchMessage):
    """Ranks that ended together."""

    tag = ("say", "exited")
    ranks: tuple[RankProcessReport, ...]


@dataclass(frozen=True, slots=True)
class StoreHosted(LaunchMessage):
    """Where an attempt's ranks meet; if no process serves there, rank 0 must."""

    tag = ("say", "store")
    role: str
    attempt: int
    port: int
    hosted: bool


@dataclass(frozen=True, slots=True)
class MeetingReady(LaunchMessage):
    """The store of a later generation; empty: there is none."""

    tag = ("say", "met")
    attempt: int
    generation: int
    store: str


@dataclass(frozen=True, slots=True)
class NodeQuiet(LaunchMessage):
    """No rank of the node has printed anything for so long."""

    tag = ("say", "quiet")
    seconds: float


@dataclass(frozen=True, slots=True)
class AgentLeaving(LaunchMessage):
    """The launch that started this agent has ended."""

    tag = ("say", "leaving")


@dataclass(frozen=True, slots=True)
class RankOutput(LaunchMessage):
    """What a rank has printed, one letter a byte."""

    tag = ("say", "output")
    logs: str
    stream: str
    data: str


@dataclass(frozen=True, slots=True)
class RankOutputEnd(LaunchMessage):
    """A rank prints no more."""

    tag = ("say", "output_end")
    logs: str


@dataclass(frozen=True, slots=True)
class NodeUnwatched(LaunchMessage):
    """The ranks of the node run, and the plane does not see them."""

    tag = ("say", "unwatched")
    why: str


@dataclass(frozen=True, slots=True)
class NodeCleared(LaunchMessage):
    """Nothing of the job is left on the node; so many bytes of output are in no log."""

    tag = ("say", "cleared")
    lost: int


# From a job agent to its keeper.


@dataclass(frozen=True, slots=True)
class SpawnRequest(LaunchMessage):
    """Start a process; the first `given` descriptors are its own, the keeper keeps the others."""

    tag = ("do", "start")
    number: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    given: int
    note: Mapping[str, Any] = field(default_factory=dict)
    terminal: bool = False
    warm: bool = False


@dataclass(frozen=True, slots=True)
class SignalChild(LaunchMessage):
    """Signal a process and its group."""

    tag = ("do", "signal")
    number: int
    signum: int


@dataclass(frozen=True, slots=True)
class BuryChild(LaunchMessage):
    """Forget a process, and kill what it left running."""

    tag = ("do", "bury")
    number: int


@dataclass(frozen=True, slots=True)
class SweepJob(LaunchMessage):
    """Signal all that runs of the job; signal 0 only counts it."""

    tag = ("do", "sweep")
    signum: int


@dataclass(frozen=True, slots=True)
class EndKeeper(LaunchMessage):
    """Kill everything, and leave."""

    tag = ("do", "end")


# From a keeper to its job agent.


@dataclass(frozen=True, slots=True)
class KeeperHello(LaunchMessage):
    """The keeper is ready; `warm` if it can fork programs."""

    tag = ("say", "hello")
    pid: int
    children: tuple[ChildReport, ...]
    warm: bool


@dataclass(frozen=True, slots=True)
class ChildStarted(ChildReport, LaunchMessage):
    """A process has been started."""

    tag = ("say", "started")


@dataclass(frozen=True, slots=True)
class ChildFailed(LaunchMessage):
    """A process could not be started."""

    tag = ("say", "failed")
    number: int
    errno: int | None
    what: str | None


@dataclass(frozen=True, slots=True)
class ChildrenExited(LaunchMessage):
    """Processes that ended together."""

    tag = ("say", "exited")
    children: tuple[ChildExit, ...]


@dataclass(frozen=True, slots=True)
class ChildrenLeft(LaunchMessage):
    """How many processes a SweepJob has found."""

    tag = ("say", "left")
    count: int


# To a zygote, and its replies.


@dataclass(frozen=True, slots=True)
class KeeperRequest(LaunchMessage):
    """Fork a keeper; `argv`, `env` and `cwd` are those of its first command."""

    tag = ("do", "keep")
    job: str
    node: str
    address: str
    orphan_limit: float
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    alert: str | None = None  # the FileCheck that was sent ahead


@dataclass(frozen=True, slots=True)
class FileCheck(LaunchMessage):
    """Check your files now: the KeeperRequest with this alert will follow."""

    tag = ("do", "look")
    alert: str


@dataclass(frozen=True, slots=True)
class ZygoteLeave(LaunchMessage):
    """Leave; with `if_idle` only if no job has ranks of this zygote."""

    tag = ("do", "leave")
    if_idle: bool | None = None


@dataclass(frozen=True, slots=True)
class ZygoteBusy(LaunchMessage):
    """The zygote stays: these jobs have ranks of it."""

    tag = ("say", "busy")
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ZygoteCold(LaunchMessage):
    """No keeper is forked, and why."""

    tag = ("say", "cold")
    why: str


@dataclass(frozen=True, slots=True)
class ZygoteWarm(LaunchMessage):
    """A keeper is forked: from now on the connection is its own."""

    tag = ("say", "warm")
    pid: int


# From the supervisor to a node agent that sent a PlaneRequest.


@dataclass(frozen=True, slots=True)
class PlaneAddress(LaunchMessage):
    """Where the plane's NATS listens, and the token for it."""

    tag = ("do", "go")
    proof: str
    token: str
    nats: str
    authority: str


@dataclass(frozen=True, slots=True)
class PlanePassage(LaunchMessage):
    """The token; this connection is now one to the plane's NATS."""

    tag = ("do", "pass")
    proof: str
    token: str


@dataclass(frozen=True, slots=True)
class PlaneRefusal(LaunchMessage):
    """There is no way to the plane, and why."""

    tag = ("do", "refuse")
    proof: str
    why: str


# Who receives what.


@dataclass(frozen=True, slots=True)
class Unknown(LaunchMessage):
    """A message that its receiver has no class for: it ignores it."""

    kind: str


class Kinds:
    """The classes of messages that one receiver takes, by the value of their tag."""

    def __init__(self, *classes: type[LaunchMessage]) -> None:
        self.classes = {made.tag[1]: made for made in classes}
        (self.key,) = {made.tag[0] for made in classes}


TO_JOB_AGENT = Kinds(
    ProofRequest,
    AppIdReply,
    JobSettings,
    StartReplica,
    HostStore,
    ForkRank,
    PrepareMeeting,
    EndIncarnation,
    StopReplica,
    SignalRanks,
    EndJob,
)
TO_SUPERVISOR = Kinds(
    AgentHello,
    AgentProof,
    AppIdRequest,
    PlaneRequest,
    RanksStarted,
    ReplicaStartFailed,
    RankNotForked,
    RanksExited,
    StoreHosted,
    MeetingReady,
    NodeQuiet,
    AgentLeaving,
    RankOutput,
    RankOutputEnd,
    NodeUnwatched,
    NodeCleared,
)
TO_KEEPER = Kinds(SpawnRequest, SignalChild, BuryChild, SweepJob, EndKeeper)
FROM_KEEPER = Kinds(KeeperHello, ChildStarted, ChildFailed, ChildrenExited, ChildrenLeft)
TO_ZYGOTE = Kinds(KeeperRequest, FileCheck, ZygoteLeave)
FROM_ZYGOTE = Kinds(ZygoteBusy, ZygoteCold, ZygoteWarm)
TO_NODE_AGENT = Kinds(ProofRequest, PlaneAddress, PlanePassage, PlaneRefusal)


def decode(data: WireMessage, kinds: Kinds) -> LaunchMessage:
    """Return the message in a JSON object; raises BadFrame if its fields do not fit its kind."""
    kind = data.get(kinds.key)
    if not isinstance(kind, str):
        raise BadFrame
    made = kinds.classes.get(kind)
    return Unknown(kind) if made is None else read(made, data)


def decoding(
    kinds: Kinds, handle: Callable[[LaunchMessage, list[int]], None]
) -> Callable[[WireMessage, list[int]], None]:
    """Return what a Connection calls for each frame, so that `handle` gets typed messages."""
    return lambda data, fds: handle(decode(data, kinds), fds)


_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
_readers: dict[type, dict[str, tuple[str, _Reader]]] = {}


def read(made: type[_T], data: object) -> _T:
    """Return an instance of a class of this module from its JSON; raises BadFrame."""
    if not isinstance(data, Mapping):
        raise BadFrame
    readers = _readers.get(made) or _readers.setdefault(made, _readers_of(made))
    given = {name: take(data[key]) for name, (key, take) in readers.items() if key in data}
    try:
        return made(**given)
    except TypeError as error:  # a field without a default is missing
        raise BadFrame from error


def encode(value: Any) -> Any:
    """Return a value as `json.dumps` takes it."""
    if hasattr(value, "__dataclass_fields__"):
        return _encoded(value)
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _encoded(value: Any) -> dict[str, Any]:
    """Return the fields of an instance under their names in JSON."""
    found: dict[str, Any] = {}
    for name in value.__dataclass_fields__:
        held = getattr(value, name)
        if held is not None or name not in LEFT_OUT:
            found[WIRE_NAMES.get(name, name)] = encode(held)
    return found


def _readers_of(made: Any) -> dict[str, tuple[str, _Reader]]:
    types = {name: each.type for name, each in made.__dataclass_fields__.items()}
    return {name: (WIRE_NAMES.get(name, name), _reader(kind)) for name, kind in types.items()}


def _reader(wanted: Any) -> _Reader:
    """Return what checks a value of an annotated type, and makes it from its JSON."""
    arguments: tuple[Any, ...] = getattr(wanted, "__args__", ())
    origin = getattr(wanted, "__origin__", wanted)
    if wanted is Any:
        return lambda value: value
    if isinstance(wanted, UnionType):
        return _optional(_reader(arguments[0]))
    if origin is tuple:
        is_list = arguments[-1] is Ellipsis
        return _list(_reader(arguments[0])) if is_list else _row([*map(_reader, arguments)])
    if origin is Mapping:
        return _mapping(_reader(arguments[1]))
    if hasattr(wanted, "__dataclass_fields__"):
        return lambda value: read(wanted, value)
    return _plain((int, float) if wanted is float else (wanted,))


def _plain(types: tuple[type, ...]) -> _Reader:
    def take(value: Any) -> Any:
        if type(value) not in types:  # not `isinstance`: True is no number
            raise BadFrame
        return value

    return take


def _optional(inner: _Reader) -> _Reader:
    return lambda value: None if value is None else inner(value)


def _list(inner: _Reader) -> _Reader:
    def take(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise BadFrame
        return tuple(map(inner, value))

    return take


def _row(inner: list[_Reader]) -> _Reader:
    def take(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(inner):
            raise BadFrame
        return tuple(each(one) for each, one in zip(inner, value, strict=True))

    return take


def _mapping(inner: _Reader) -> _Reader:
    def take(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadFrame
        return {name: inner(each) for name, each in value.items()}

    return take
