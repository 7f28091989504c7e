"""What the database holds, as values: one frozen class a table, one field a column.

Times are unix seconds. `Json` fields hold whatever JSON can say.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of a table of `state`."""


@dataclass(frozen=True, slots=True)
class Epoch(StoredRow):
    """One start of a weaver; the highest is the one that may write."""

    epoch: int
    host: str
    pid: int
    started_at: float


@dataclass(frozen=True, slots=True)
class JobRow(StoredRow):
    """A job and where its life stands."""

    id: str
    name: str = ""
    owner: str = ""
    scheduler: str = ""
    handle: str = ""
    state: str = "RUNNING"
    reason: str = ""
    run_id: str = ""
    attempt: int = 0
    generation: int = 0
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    facts: Json = field(default_factory=dict)
    step: int | None = None  # how far it came; known when it has ended
    account: str = ""  # the unix account that it runs as; none: the plane's own user


@dataclass(frozen=True, slots=True)
class RunRow(StoredRow):
    """One experiment of a job; it outlives restarts."""

    id: str
    job: str
    name: str = ""
    config: Json = field(default_factory=dict)
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentRow(StoredRow):
    """The agent of a node, and with it the node."""

    id: str
    host: str
    boot: str
    pid: int
    state: str = "up"
    reason: str = ""
    first_seen: float = 0.0
    greeted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceRow(StoredRow):
    """An accelerator or a CPU slot; `index` counts within its kind and node."""

    uuid: str
    node: str = ""
    kind: str = ""
    index: int = 0
    memory: int = 0
    state: str = "healthy"
    source: str = ""
    reason: str = ""
    changed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RankProcessRow(StoredRow):
    """The present life of a rank; lives before it are in the events."""

    job: str
    role: str
    rank: int
    generation: int
    incarnation: str
    world_size: int = 0
    local_rank: int = 0
    node: str = ""
    agent: str = ""
    pid: int = 0
    started: int = 0
    replica: str = ""
    devices: Json = field(default_factory=list)
    boundary: str = "none"
    knobs: Json = field(default_factory=list)
    state: str = "up"
    reason: str = ""
    registered_at: float = 0.0
    ended_at: float | None = None
    life: int = 1  # the how manieth process of its rank in its attempt
    attempt: int = 0

    @property
    def process_id(self) -> str:
        """Return the rank's name in the device map: the same over restarts."""
        return f"{self.job}/{self.role}/{self.rank}"


@dataclass(frozen=True, slots=True)
class MapEntry(StoredRow):
    """A device and a process that uses it; `version` is that of the map which first had it."""

    device: str
    process: str
    version: int


@dataclass(frozen=True, slots=True)
class Fact(StoredRow):
    """A single value that belongs to no table, such as the version of the device map."""

    name: str
    value: Json = None


@dataclass(frozen=True, slots=True)
class CommandRow(StoredRow):
    """What somebody asked of a running job, and what became of it."""

    id: str
    number: int
    job: str
    kind: str
    payload: Json = field(default_factory=dict)
    at: int | None = None
    author: str = ""
    reason: str = ""
    asked_at: float = 0.0
    state: str = "accepted"
    generation: int = 0
    offer: int = 1
    effective: int | None = None
    before: Json = None
    after: Json = None
    outcome: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class CommandAck(StoredRow):
    """What one rank of one generation said to a command."""

    command: str
    generation: int
    rank: int
    incarnation: str = ""
    state: str = "ready"
    step: int | None = None
    ahead: int | None = None
    why: str = ""
    before: Json = None
    after: Json = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class GuardRow(StoredRow):
    """What must not happen in the steps after a change, or it is taken back."""

    command: str
    job: str
    words: str
    span: int
    base: float | None = None  # the metric before the change
    state: str = "watching"
    why: str = ""


@dataclass(frozen=True, slots=True)
class EventRow(StoredRow):
    """A decision or a transition; `seq` grows and is a reader's cursor."""

    seq: int = 0
    time: float = 0.0
    job: str = ""
    kind: str = ""
    rank: int = -1
    step: int | None = None
    author: str = ""
    reason: str = ""
    facts: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubmissionRow(StoredRow):
    """A job as it was asked for; `number` is its place in the order of submission."""

    job: str
    number: int
    owner: str = ""
    priority: int = 0
    spec: Json = field(default_factory=dict)
    key: str = ""  # of the caller, so that asking twice submits once
    cwd: str = ""
    python: str = ""  # the interpreter of whoever asked
    author: str = ""
    submitted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement(StoredRow):
    """What a job has of one node, from before its ranks are asked for until it has ended."""

    job: str
    node: str
    workers: int
    cpus: int = 0
    memory_mb: int = 0
    gpus: Json = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QuotaRow(StoredRow):
    """How many workers an owner may have at once."""

    owner: str
    workers: int


@dataclass(frozen=True, slots=True)
class LiveRecoveryRow(StoredRow):
    """How the live recovery of a job's present attempt stands; `record` is the rule's own."""

    job: str
    attempt: int
    state: str  # "live", or "restarting": the launch process is to start all ranks again
    record: Json
    role: str = ""
    store: str = ""  # where the ranks of the newest generation meet
    stored: int = -1  # which generation's that is
    since: float | None = None  # when the loss was known that it recovers from
    cause: str = ""  # why all ranks are to be started again


@dataclass(frozen=True, slots=True)
class CheckpointRow(StoredRow):
    """One writing of a checkpoint, by one generation, and what became of it."""

    job: str
    step: int
    generation: int
    attempt: int
    state: str = "writing"
    world_size: int = 0
    bytes: int = 0
    place: str = ""
    metrics: Json = field(default_factory=dict)
    trigger: str = ""
    reason: str = ""
    author: str = ""  # who wants it gone
    root: str = ""
    created_at: float = 0.0
    committed_at: float | None = None
    changed_at: float = 0.0
    shards: Json = field(default_factory=list)  # until it is settled
    manifest: str = ""  # what is to be committed, until it is settled

    @property
    def key(self) -> tuple[int, int, int]:
        """Return which writing of its job's this is; a later one is greater."""
        return self.step, self.generation, self.attempt


@dataclass(frozen=True, slots=True)
class UserRow(StoredRow):
    """Somebody who may come in, and how much they may do there."""

    name: str
    role: str
    disabled: bool = False
    created_at: float = 0.0
    run_as: str = ""  # the unix account of their jobs, on a plane that runs as root


@dataclass(frozen=True, slots=True)
class TokenRow(StoredRow):
    """By what a user is known; the secret itself is nowhere, only its hash."""

    id: str
    user: str
    label: str = ""
    hash: str = ""
    kind: str = "token"
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    key: str = ""  # of the caller, so that asking twice makes one
    proof: str = ""  # of a session: the hash of its second secret


@dataclass(frozen=True, slots=True)
class LinkRow(StoredRow):
    """A way in for one user that is good once."""

    hash: str
    user: str
    expires_at: float = 0.0
    used_at: float | None = None
    key: str = ""  # as a token's


# What `records` holds.


@dataclass(frozen=True, slots=True)
class PointRow:
    """A number of one rank at one step; of several generations, the highest."""

    name: str
    rank: int
    step: int
    generation: int
    time: float
    value: float
    role: str = ""


@dataclass(frozen=True, slots=True)
class RankEventRow:
    """Something that a rank or an agent told; `id` grows and is a reader's cursor."""

    id: int
    job: str
    rank: int
    generation: int
    incarnation: str
    number: int
    kind: str
    step: int
    time: float
    facts: Json


@dataclass(frozen=True, slots=True)
class Received:
    """All records of one life up to this number are stored."""

    job: str
    rank: int
    incarnation: str
    upto: int
    dropped: int
