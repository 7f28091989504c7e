"""The data of the page's WebSocket: the value of each topic and the changes sent after it.

The server sends these as plain mappings and does not import this module. `make types` generates
the dashboard's TypeScript from it, and the tests of the stream check each message against it.
"""

from typing import Any, Generic, Literal, TypeVar

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from torchloom.server.models.cluster import Device, Queued
from torchloom.server.models.commands import Check, Command
from torchloom.server.models.common import Answer
from torchloom.server.models.jobs import (
    CurveColumns,
    Job,
    Knob,
    LogLine,
    Number,
    PointColumns,
    Rank,
)
from torchloom.server.problems import Problem

Verb = Literal["set", "undo", "pause", "resume", "resize", "stop", "checkpoint", "cancel"]
Role = Literal["viewer", "operator", "admin"]
EntryKind = Literal[
    "knob",
    "command",
    "checkpoint",
    "restart",
    "recovery",
    "rank",
    "node",
    "alert",
    "state",
    "event",
]
Item = TypeVar("Item")
Cell = tuple[int, str, int, float]  # rank, role, slot, value


class Streamed(Answer, schema="Streamed"):
    """A part of a message that has no members but those stated."""

    model_config = ConfigDict(extra="forbid")


class ListedJob(Job, Streamed, schema="ListedJob"):
    """A job with its progress, its speed and its latest loss."""

    progress: float | None
    total_steps: int | None
    eta_seconds: int | None
    throughput: float | None
    loss: float | None
    spark: list[Number] = Field(description="the loss, thinned to a few values")
    spark_name: str | None
    queue_position: int | None
    project: str
    tags: list[str]


class ShownJob(ListedJob, schema="ShownJob"):
    """A job as its own page shows it."""

    first_error: dict[str, Any] | None
    summary: Any


class ShownRank(Rank, Streamed, schema="ShownRank"):
    """A rank with the duration of its steps."""

    step_seconds: float | None
    silent_seconds: int | None = Field(description="seconds since its last step")
    incarnation: str
    boundary: str


class ShownKnob(Knob, Streamed, schema="ShownKnob"):
    """A knob with its type and its bounds."""

    type: Literal["float", "int", "bool", "str", "json"]
    low: float | None
    high: float | None
    values: list[Any] | None = Field(
        default=None, description="the first value of each of `ranks`, where these differ"
    )


class ProcessClock(Streamed, schema="ProcessClock"):
    """How many ranks are up."""

    state: str
    up: int
    total: int
    detail: str


class ProgressClock(Streamed, schema="ProgressClock"):
    """How far the ranks have trained."""

    state: str
    step: int | None
    phase: str | None
    seconds_since: int | None
    detail: str


class SchedulerClock(Streamed, schema="SchedulerClock"):
    """The state of the job in the engine that started it."""

    state: str
    engine: str
    handle: str
    detail: str


class Clocks(Streamed, schema="Clocks"):
    """What processes, progress and the scheduler report, each on its own."""

    process: ProcessClock
    progress: ProgressClock
    scheduler: SchedulerClock


class TimelineEntry(Streamed, schema="TimelineEntry"):
    """Something that was done to a job or happened to it."""

    key: str
    seq: int
    time: str
    step: int | None
    kind: EntryKind
    title: str
    what: str
    author: str
    reason: str
    rank: int | None
    before: Any
    after: Any
    command: str | None
    facts: dict[str, Any]
    is_failure: bool = Field(description="it stays listed, whatever follows")


class HeatLine(Streamed, schema="HeatLine"):
    """The values of one rank over time."""

    rank: int
    role: str
    values: list[Number] = Field(description="one for each column; null where there is none")


class HeatMap(Streamed, schema="HeatMap"):
    """The values of all ranks over time, a line for each rank."""

    name: str
    columns: int
    width: int = Field(description="seconds per cell")
    start: int = Field(description="the first column begins `start * width` seconds after 1970")
    left_out: int = Field(description="number of ranks left out because there are too many")
    lines: list[HeatLine]


class KeyedLine(LogLine, Streamed, schema="KeyedLine"):
    """A line of a log with a key that no other line of the job has."""

    key: str


class NodeResources(Streamed, schema="NodeResources"):
    """What a node has, or has left; devices by their uuids."""

    cpus: int
    memory_mb: int
    gpus: list[str]


class ClusterNode(Streamed, schema="ClusterNode"):
    """A host with the state of its agent; a host that is down has null for what is not known."""

    id: str
    state: str
    reason: str
    cpus: int | None
    memory_mb: int | None
    gpus: list[str] | None
    free: NodeResources | None
    jobs: list[str] | None
    workers: int
    heard_at: str | None = Field(description="null for now")


class ClusterDevice(Device, Streamed, schema="ClusterDevice"):
    """A device; its id is its uuid."""

    id: str


class ClusterRank(Streamed, schema="ClusterRank"):
    """A rank that has a device; its id is JOB/ROLE/RANK."""

    id: str
    job: str
    role: str
    rank: int
    node: str
    state: str
    replica: str
    reason: str


class ClusterJob(Streamed, schema="ClusterJob"):
    """A job that has devices."""

    id: str
    name: str
    state: str
    owner: str


class JobsValue(Streamed, schema="JobsValue"):
    items: list[ListedJob]


class JobValue(Streamed, schema="JobValue"):
    """One job; `job` is null, and the only member, once it has been removed."""

    job: ShownJob | None
    clocks: Clocks
    ranks: list[ShownRank]
    knobs: list[ShownKnob]
    metrics: list[str]
    verbs: list[Verb]


class SeriesValue(Streamed, schema="SeriesValue"):
    series: list[CurveColumns]


class TimelineValue(Streamed, schema="TimelineValue"):
    items: list[TimelineEntry]


class CommandsValue(Streamed, schema="CommandsValue"):
    items: list[Command]


class LogsValue(Streamed, schema="LogsValue"):
    items: list[KeyedLine]
    older: bool = Field(description="there are lines before these")


class ChecksValue(Streamed, schema="ChecksValue"):
    items: list[Check]


class ClusterValue(Streamed, schema="ClusterValue"):
    nodes: list[ClusterNode]
    devices: list[ClusterDevice]
    ranks: list[ClusterRank]
    jobs: list[ClusterJob]
    queue: list[Queued]


class StreamValues(Streamed, schema="StreamValues"):
    """The data of a snapshot, by topic."""

    jobs: JobsValue
    job: JobValue
    series: SeriesValue
    heat: HeatMap
    timeline: TimelineValue
    commands: CommandsValue
    logs: LogsValue
    checks: ChecksValue
    cluster: ClusterValue


class ListDelta(Streamed, Generic[Item], schema="ListDelta"):
    """The items of a list that changed or were added, and the ids of those that were removed."""

    items: list[Item]
    gone: list[str] = Field(default=[])


class JobDelta(TypedDict, total=False):
    """The members of a job that changed."""

    job: ShownJob | None
    clocks: Clocks
    ranks: list[ShownRank]
    knobs: list[ShownKnob]
    metrics: list[str]
    verbs: list[Verb]


class SeriesDelta(Streamed, schema="SeriesDelta"):
    points: list[PointColumns]


class HeatDelta(Streamed, schema="HeatDelta"):
    cells: list[Cell]


class LogsDelta(Streamed, schema="LogsDelta"):
    items: list[KeyedLine]


class ClusterDelta(TypedDict, total=False):
    """The lists that changed; the queue is sent whole."""

    nodes: ListDelta[ClusterNode]
    devices: ListDelta[ClusterDevice]
    ranks: ListDelta[ClusterRank]
    jobs: ListDelta[ClusterJob]
    queue: list[Queued]


class StreamDeltas(Streamed, schema="StreamDeltas"):
    """The data of a delta, by topic."""

    jobs: ListDelta[ListedJob]
    job: JobDelta
    series: SeriesDelta
    heat: HeatDelta
    timeline: TimelineValue
    commands: ListDelta[Command]
    logs: LogsDelta
    checks: ListDelta[Check]
    cluster: ClusterDelta


class HelloMessage(Streamed, schema="HelloMessage"):
    """The first message of a connection."""

    kind: Literal["hello"]
    user: str
    role: Role
    version: str
    pid: int
    time: float


class HeartbeatMessage(Streamed, schema="HeartbeatMessage"):
    """The state of the server, every two seconds."""

    kind: Literal["beat"]
    time: float
    behind: float = Field(description="seconds since new data could last be read")
    weaver: bool = Field(description="whether the weaver answers")


class SnapshotMessage(Streamed, schema="SnapshotMessage"):
    """All data of a topic."""

    kind: Literal["snapshot"]
    id: str
    cursor: str
    data: Any


class DeltaMessage(Streamed, schema="DeltaMessage"):
    """New data of a topic."""

    kind: Literal["delta"]
    id: str
    cursor: str
    data: Any


class ErrorMessage(Streamed, schema="ErrorMessage"):
    """Why a subscription was refused, or has ended."""

    kind: Literal["error"]
    id: str
    problem: Problem


ServerMessage = HelloMessage | HeartbeatMessage | SnapshotMessage | DeltaMessage | ErrorMessage
