"""What requests and answers look like: the only place where pydantic is spoken of jobs.

An answer may have more members than are named here; those that are named are always there.
"""

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from torchloom.server.paging import Page
from torchloom.specs.job import JobState

Text = Annotated[str, Field(max_length=1000)]
_LONGEST = 300  # letters of a name
Name = Annotated[
    str,
    Path(
        alias="id",
        min_length=1,
        max_length=_LONGEST,
        description="a job: its id, the beginning of one, or its name",
    ),
]
AbsolutePath = Annotated[str | None, Query(max_length=4096, pattern=r"^/[^\x00-\x1f]*$")]
CommandId = Annotated[str, Path(min_length=1, max_length=_LONGEST)]
RunId = Annotated[str, Path(min_length=1, max_length=_LONGEST)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="the same request with the same key, sent again, is done once",
    ),
]


class Answer(BaseModel):
    """Anything that is answered."""

    model_config = ConfigDict(extra="allow")


class Request(BaseModel):
    """Anything that is asked for; a member that nobody knows is a mistake."""

    model_config = ConfigDict(extra="forbid")


class Job(Answer):
    """A job and where its life stands; `job_id` and `status` say `id` and `state` again."""

    id: str
    job_id: str
    run_id: str
    name: str
    state: JobState
    status: JobState
    reason: str
    step: int | None
    world_size: int | None
    attempt: int
    generation: int
    handle: str
    scheduler: str
    owner: str
    created_at: str | None
    started_at: str | None
    ended_at: str | None


class Submitted(Job):
    """A job that was taken; `created` is false when its key had been used for it before."""

    created: bool


class Rank(Answer):
    """One training process."""

    rank: int
    local_rank: int
    role: str
    replica: str
    node: str
    pid: int
    state: str
    reason: str
    step: int | None
    phase: str | None
    device_uuids: list[str]
    generation: int


class JobDetail(Job):
    """A job with its ranks, what it was submitted as, and what came of it."""

    ranks: list[Rank] | None = Field(description="null when only the database was asked")
    spec: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    first_error: dict[str, Any] | None = Field(
        default=None,
        description="what went wrong first, by time: rank, attempt, message, traceback",
    )


class Jobs(Page):
    items: list[Job]


class Ranks(Page):
    items: list[Rank]


class Knob(Answer):
    """A value that may be changed while the job runs."""

    name: str
    value: Any
    ranks: list[int]


class Knobs(Page):
    items: list[Knob]


class Event(Answer):
    """Something that happened to a job, or that a rank told."""

    time: str | None
    job: str
    kind: str
    rank: int
    step: int | None
    facts: Any
    from_: Literal["weaver", "rank"] = Field(alias="from")


class Events(Page):
    items: list[Event]


class Checkpoint(Answer):
    """One writing of a checkpoint, and what became of it."""

    job: str
    step: int
    generation: int
    attempt: int
    state: Literal["writing", "committing", "committed", "failed", "removing", "removed", "damaged"]
    world_size: int
    bytes: int
    place: str
    metrics: dict[str, float]
    trigger: str
    reason: str
    created_at: str | None
    committed_at: str | None
    seconds: float | None = Field(description="from its first shard until it was committed")


class Checkpoints(Page):
    items: list[Checkpoint]


class CommandRank(Answer):
    """What one rank did."""

    rank: int
    state: str
    step: int | None


class Command(Answer):
    """What somebody asked of a running job, and what became of it."""

    id: str
    number: int
    job: str
    kind: str
    payload: Any
    at: int | None
    author: str
    reason: str
    asked_at: str | None
    state: str
    generation: int
    effective_step: int | None
    before: Any
    after: Any
    outcome: str
    ended_at: str | None
    ranks: list[CommandRank]
    checkpoint: Checkpoint | None = Field(
        default=None, description="of `checkpoint`, where it was asked for: what was saved"
    )


class Commands(Page):
    items: list[Command]


Scalar = bool | int | float | str


class CommandRequest(Request):
    """Change a running job at one step on all its ranks."""

    verb: Literal["set", "undo", "pause", "resume", "stop", "checkpoint"]
    values: Annotated[dict[str, Scalar], Field(max_length=100)] | None = Field(
        default=None, description="of `set`: knobs and their new values"
    )
    hold: bool = Field(default=False, description="of `set`: schedules do not scale it")
    guard: Text | None = Field(default=None, description="of `set`: undo it when this holds")
    span: Annotated[int, Field(ge=1, le=1 << 40)] | None = Field(
        default=None, description="of `set`: for so many steps the guard watches"
    )
    command: Text | None = Field(default=None, description="of `undo`: which one; else the last")
    at: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        default=None, description="the step to act at; else the next that all can"
    )
    workers: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="of `resume`, for a job that has ended: how many from now on"
    )
    from_step: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        default=None, description="of `resume`: the checkpoint to go on from; else the newest"
    )
    release: bool = Field(
        default=False, description="of `pause`: save, end the ranks and give back what they had"
    )
    reason: Text = ""
    wait: Annotated[float, Field(ge=0, le=60)] = Field(
        default=30.0, description="seconds to wait for what becomes of it"
    )


class Stacks(Answer):
    """What ranks are doing, each stack once, and a verdict."""

    job: str
    taken: str
    time: str | None
    roles: list[dict[str, Any]]


class Device(Answer):
    """An accelerator or a CPU slot, and who uses it."""

    uuid: str
    node: str
    kind: str
    index: int
    memory: int
    state: str
    source: str
    reason: str
    changed_at: str | None
    processes: list[str]


class Devices(Page):
    version: int
    items: list[Device]


class DeviceRequest(Request):
    """What somebody who watches hardware says of a device."""

    state: Literal["healthy", "draining", "failed"]
    reason: Text = ""
    new: bool = Field(default=False, description="make the device known if it is not")


class Alerts(BaseModel):
    """What Alertmanager sends to a webhook, as far as it is read."""

    alerts: list[dict[str, Any]]


class AlertsTaken(Answer):
    """Of which devices alerts said something."""

    devices: list[str]


class Worker(Answer):
    """A node with its agent: what it has, and how it is."""

    id: str
    host: str
    state: str
    reason: str
    first_seen: str | None
    cpus: int | None
    memory_mb: int | None
    gpus: Any
    free: Any
    jobs: Any


class Workers(Page):
    items: list[Worker]


class PlaneStatus(BaseModel):
    """How the weaver is, and no more of it: where its database lies is nobody's concern."""

    epoch: int
    pid: int
    host: str
    started_at: str
    connected: bool = Field(description="whether it hears itself over the bus")
    jobs: int = Field(description="that are not over")
    agents: int
    ranks: int
    backlog: int = Field(description="records that wait to be stored")
    stored: int
    dropped: dict[str, int] = Field(description="messages that were not believed, by reason")


class Amount(Answer):
    """So much of something: all there is on nodes that are up, and what no job has."""

    total: int
    free: int


class Resources(Answer):
    """What the cluster has."""

    nodes: int
    cpus: Amount
    memory_mb: Amount
    gpus: Amount


class Queued(Answer):
    """A job that waits for its turn, and for what."""

    job: str
    owner: str
    priority: int
    position: int
    why: str


class Queue(Page):
    items: list[Queued]


class Quota(Answer):
    """How many workers an owner may have at once, and has."""

    owner: str
    workers: int | None = Field(description="null is no limit")
    used: int


class Quotas(Page):
    items: list[Quota]


class QuotaRequest(Request):
    """How many workers an owner may have at once; null takes the limit away."""

    workers: Annotated[int, Field(ge=0, lt=1 << 31)] | None


class Run(Answer):
    """One experiment of a job, as lists show it."""

    run_id: str
    job_id: str
    name: str
    owner: str
    state: str
    created_at: str | None
    metrics: dict[str, Any]


class Runs(Page):
    items: list[Run]


class RunDetail(Run):
    """One experiment with everything that was recorded of it."""

    config: dict[str, Any]
    timeline: list[dict[str, Any]]
    artifacts: list[dict[str, Any]]


class CompareRequest(Request):
    """Which runs to lay side by side."""

    runs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=_LONGEST)]],
        Field(min_length=2, max_length=20),
    ]


class Comparison(Answer):
    """Runs side by side: what differs in their settings, what came of each."""

    runs: list[Run]
    config: list[dict[str, Any]]
    metrics: list[dict[str, Any]]


class Health(BaseModel):
    """That the process answers."""

    status: Literal["ok"]
    pid: int
    version: str


class Readiness(BaseModel):
    """Whether there is somebody to ask, and something to read."""

    status: Literal["ready"]
    weaver: dict[str, Any]
    database: str
