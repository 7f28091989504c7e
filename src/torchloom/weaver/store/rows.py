"""What the database holds, as values: one frozen class a table, one field a column.

Times are unix seconds. `Json` fields hold any JSON.
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
    """A job and its state."""

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
    step: int | None = None  # its last step; known when it has ended
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
    """The current process of a rank; earlier ones are in the events."""

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
    life: int = 1  # the incarnation of its rank within its attempt, from 1
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
    """A command to a running job, and its outcome."""

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
    """The answer of one rank of one generation to a command."""

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
    """A condition that undoes a change if it holds in the steps after it."""

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
    """A job as it was submitted; `number` is its place in the order of submission."""

    job: str
    number: int
    owner: str = ""
    priority: int = 0
    spec: Json = field(default_factory=dict)
    key: str = ""  # of the client, so that a repeated request submits once
    cwd: str = ""
    python: str = ""  # the client's interpreter
    author: str = ""
    submitted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement(StoredRow):
    """What a job has of one node, from its placement until it has ended."""

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
    """The state of the live recovery of a job's current attempt; `record` is of the rules."""

    job: str
    attempt: int
    state: str  # "live", or "restarting": the launch process is to restart all ranks
    record: Json
    role: str = ""
    store: str = ""  # the address of the store of the newest generation
    stored: int = -1  # the generation of that store
    since: float | None = None  # when the loss was detected that it recovers from
    cause: str = ""  # why all ranks are to be restarted


@dataclass(frozen=True, slots=True)
class CheckpointRow(StoredRow):
    """A checkpoint as one generation wrote it, and its state."""

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
    trainer: str = ""  # the program's trainer that saved it in its own way, if one did
    path: str = ""  # where the trainer's files are
    reason: str = ""
    author: str = ""  # who requested its removal
    root: str = ""
    created_at: float = 0.0
    committed_at: float | None = None
    changed_at: float = 0.0
    shards: Json = field(default_factory=list)  # until it is in a final state
    manifest: str = ""  # the manifest to commit, until it is in a final state

    @property
    def key(self) -> tuple[int, int, int]:
        """Return the key within its job; a later checkpoint has a greater one."""
        return self.step, self.generation, self.attempt


@dataclass(frozen=True, slots=True)
class UserRow(StoredRow):
    """A user and the user's role."""

    name: str
    role: str
    disabled: bool = False
    created_at: float = 0.0
    run_as: str = ""  # the unix account of their jobs, on a plane that runs as root


@dataclass(frozen=True, slots=True)
class TokenRow(StoredRow):
    """A token of a user; only the hash of its secret is stored."""

    id: str
    user: str
    label: str = ""
    hash: str = ""
    kind: str = "token"
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    key: str = ""  # of the client, so that a repeated request makes one
    proof: str = ""  # of a session: the hash of its second secret


@dataclass(frozen=True, slots=True)
class LinkRow(StoredRow):
    """A link that admits one user once."""

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
    """An event that a rank or an agent reported; `id` grows and is a reader's cursor."""

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
    """All records of one process up to this number are stored."""

    job: str
    rank: int
    incarnation: str
    upto: int
    dropped: int
