"""The plane and its nodes: state, resources, and the queue."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchloom.server.models.common import Answer, Page, Request, Text, Uuid
from torchloom.server.schema import Schema


class Device(Answer, schema="Device"):
    """An accelerator or a CPU slot, and what uses it."""

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


class Devices(Page, schema="Devices"):
    version: int
    items: list[Device]


class DeviceRequest(Request, schema="DeviceRequest"):
    """A report on the health of a device."""

    state: Literal["healthy", "draining", "failed"]
    reason: Text = ""
    new: bool = Field(default=False, description="register the device if it is unknown")


class DevicePreviewRequest(Request, schema="DevicePreviewRequest"):
    """A report on devices that is only previewed."""

    devices: Annotated[list[Uuid], Field(min_length=1, max_length=1024)]
    state: Literal["healthy", "draining", "failed"]
    reason: Text = ""


class DevicePreview(Answer, schema="DevicePreview"):
    """What a report would do; nothing is changed."""

    state: Literal["healthy", "draining", "failed"]
    devices: list[str] = Field(description="the devices that are not yet in that state")
    summary: list[str] = Field(description="one line for each affected job")
    warnings: list[str]
    command: str = Field(description="the `loom` commands that report the same")


class AlertsTaken(Answer, schema="AlertsTaken"):
    """The devices that the alerts named."""

    devices: list[str]


class Worker(Answer, schema="Worker"):
    """A node with its agent: its resources and its state."""

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


class Workers(Page, schema="Workers"):
    items: list[Worker]


class PlaneStatus(Schema, schema="PlaneStatus"):
    """The state of the weaver; the path of its database is not shown."""

    epoch: int
    pid: int
    host: str
    started_at: str
    connected: bool = Field(description="whether it receives its own messages over the bus")
    jobs: int = Field(description="jobs that have not ended")
    agents: int
    ranks: int
    backlog: int = Field(description="records waiting to be stored")
    stored: int
    dropped: dict[str, int] = Field(description="dropped messages, by reason")


class Amount(Answer, schema="Amount"):
    """An amount of a resource: the total of all nodes that are up, and the free part."""

    total: int
    free: int


class Resources(Answer, schema="Resources"):
    """What the cluster has."""

    nodes: int
    cpus: Amount
    memory_mb: Amount
    gpus: Amount


class Queued(Answer, schema="Queued"):
    """A queued job, and what it waits for."""

    job: str
    owner: str
    priority: int
    position: int
    why: str


class Queue(Page, schema="Queue"):
    items: list[Queued]


class Quota(Answer, schema="Quota"):
    """How many workers an owner may have at once, and has."""

    owner: str
    workers: int | None = Field(description="null is no limit")
    used: int


class Quotas(Page, schema="Quotas"):
    items: list[Quota]


class QuotaRequest(Request, schema="QuotaRequest"):
    """How many workers an owner may have at once; null removes the limit."""

    workers: Annotated[int, Field(ge=0, lt=1 << 31)] | None


class Retention(Answer, schema="Retention"):
    """After how many seconds the parts of an ended run are removed; null: never."""

    runs: float | None
    metrics: float | None
    logs: float | None
    dumps: float | None
    keep: int = Field(description="number of newest ended runs that are kept whatever their age")
    pinned: list[str] = Field(description="ids, names and tags of runs that are kept")
    problem: str | None = Field(
        description="why nothing is removed, if the config file has a mistake"
    )


class Health(Schema, schema="Health"):
    """That the process answers."""

    status: Literal["ok"]
    pid: int
    version: str


class Readiness(Schema, schema="Readiness"):
    """Whether the weaver answers and the database can be read."""

    status: Literal["ready"]
    weaver: dict[str, Any]
    database: str
    problems: list[str] = Field(description="problems that do not stop jobs, in sentences")
