"""A job, its ranks, what can be changed of it, what happened to it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchloom.server.models.common import LONGEST, Answer, Page, Request, Text
from torchloom.server.problems import Problem
from torchloom.server.schema import Schema
from torchloom.specs.states import JobState

MOST_ITEMS = 256  # jobs of a batch; the weaver stores them in one transaction
MOST_CANCELLED = 5000  # jobs that one request ends


class Run(Answer, schema="Run"):
    """One experiment of a job, as lists show it."""

    run_id: str
    job_id: str
    name: str
    owner: str
    state: str
    created_at: str | None
    metrics: dict[str, Any]


class ListedRun(Run, schema="ListedRun"):
    """A run in a list, with its settings."""

    config: dict[str, Any]


class Runs(Page, schema="Runs"):
    items: list[ListedRun]


class RunDetail(Run, schema="RunDetail"):
    """One experiment with everything that was recorded of it."""

    config: dict[str, Any]
    timeline: list[dict[str, Any]]
    artifacts: list[dict[str, Any]]


class CompareRequest(Request, schema="CompareRequest"):
    """Which runs to compare."""

    runs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=LONGEST)]],
        Field(min_length=2, max_length=20),
    ]


class Comparison(Answer, schema="Comparison"):
    """Compared runs: where their settings differ, and their results."""

    runs: list[Run]
    config: list[dict[str, Any]]
    metrics: list[dict[str, Any]]


Id = Annotated[str, Field(min_length=1, max_length=LONGEST)]
KeyText = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="a repeated item with the same key acts once",
    ),
]
PathText = Annotated[str | None, Field(max_length=4096, pattern=r"^/[^\x00-\x1f]*$")]

Level = Literal["debug", "info", "warning", "error", "critical"]
Number = float | None
ActiveState = Literal["QUEUED", "RUNNING", "RECOVERING", "PAUSED"]


class Job(Answer, schema="Job"):
    """A job and its state; `job_id` and `status` repeat `id` and `state`."""

    id: str
    job_id: str
    run_id: str
    name: str
    state: JobState
    status: JobState
    reason: str
    warning: str
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


class Submitted(Job, schema="Submitted"):
    """A job that was accepted; `created` is false if its key was already used for it."""

    created: bool


class JobItem(Request, schema="JobItem"):
    """One job of a batch: its spec and its options."""

    spec: dict[str, Any]
    key: KeyText = None
    cwd: PathText = None
    python: PathText = None


class SubmittedItem(Answer, schema="SubmittedItem"):
    """The outcome for one job of a batch: a job, or the problem that it would have alone."""

    status: int = Field(
        description="201; 200 if the key was already used for it; or the problem's status"
    )
    job: Submitted | None
    problem: Problem | None


class SubmittedBatch(Answer, schema="SubmittedBatch"):
    """The outcome of each job of a batch, in the order in which they were sent."""

    items: list[SubmittedItem]


class CancelRequest(Request, schema="CancelRequest"):
    """Jobs to cancel: by id, or all that are in one of some states."""

    jobs: list[Id] | None = Field(default=None, max_length=MOST_CANCELLED)
    state: list[ActiveState] | None = Field(default=None, min_length=1, max_length=4)
    owner: Id | None = Field(default=None, description="with `state`: only jobs of this owner")
    reason: Text = ""


class CancelledItem(Answer, schema="CancelledItem"):
    """The outcome for one job that was to be cancelled."""

    id: str
    status: int
    job: Job | None
    problem: Problem | None


class CancelledBatch(Answer, schema="CancelledBatch"):
    """The outcome of each; `left` is how many more are in such a state: repeat the request."""

    items: list[CancelledItem]
    left: int


class CheckedSpec(Answer, schema="CheckedSpec"):
    """A spec that was checked and not submitted."""

    ok: bool
    spec: dict[str, Any] | None = Field(
        description="the spec as it was read; null if it cannot be read"
    )
    yaml: str | None = Field(description="the same as YAML; null if it is too large for YAML")
    refused: dict[str, Any] | None = Field(
        description="the problem that submitting it would return"
    )


class Rank(Answer, schema="Rank"):
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


class JobDetail(Job, schema="JobDetail"):
    """A job with its ranks, its spec and its results."""

    ranks: list[Rank] | None = Field(description="null if only the database was read")
    spec: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    first_error: dict[str, Any] | None = Field(
        default=None,
        description="what went wrong first, by time: rank, attempt, message, traceback, or the "
        "last_lines of a rank that left none",
    )


class Jobs(Page, schema="Jobs"):
    items: list[Job]


class Ranks(Page, schema="Ranks"):
    items: list[Rank]


class Knob(Answer, schema="Knob"):
    """A value that may be changed while the job runs."""

    name: str
    value: Any
    ranks: list[int]


class Knobs(Page, schema="Knobs"):
    items: list[Knob]


class Event(Answer, schema="Event"):
    """Something that happened to a job, or that a rank reported."""

    time: str | None
    job: str
    kind: str
    rank: int
    step: int | None
    facts: Any
    from_: Literal["weaver", "rank"] = Field(alias="from")


class Events(Page, schema="Events"):
    items: list[Event]


class Stacks(Answer, schema="Stacks"):
    """What ranks are doing, each stack once, and a verdict."""

    job: str
    taken: str
    time: str | None
    roles: list[dict[str, Any]]


class BucketColumns(Schema):
    """Columns with an entry a bucket; NaN and infinity are null."""

    steps: list[int] = Field(description="the last step of each bucket")
    first_steps: list[int] = Field(description="the first step of each bucket")
    times: list[float] = Field(description="unix seconds, of the last step")
    min: list[Number]
    max: list[Number]
    last: list[Number]
    counts: list[int] = Field(description="points in each bucket")
    nans: list[int] = Field(description="number of points that are NaN")


class ReplacedColumns(BucketColumns, schema="ReplacedColumns"):
    """What one generation reported of steps that a later one has repeated; an entry a bucket."""

    generation: int


class CurveColumns(BucketColumns, schema="CurveColumns"):
    """One series as columns, an entry a bucket; NaN and infinity are null."""

    name: str
    rank: int
    role: str
    has_replaced: bool = Field(
        description="a later generation has repeated steps of it, anywhere in the series"
    )
    replaced: list[ReplacedColumns] = Field(
        description="with `replaced`: by generation, what was reported of such steps before"
    )


class PointColumns(Schema, schema="PointColumns"):
    """One series as columns, an entry a point."""

    name: str
    rank: int
    role: str
    steps: list[int]
    times: list[float]
    values: list[Number]


class LogLine(Schema, schema="LogLine"):
    """A line that a rank printed."""

    time: str | None = Field(description="when it was written, accurate to a tenth of a second")
    rank: int
    role: str
    stream: Literal["stdout", "stderr"]
    level: Level = Field(
        description="the level that the line names; else `info` for stdout, `error` for stderr"
    )
    message: str
