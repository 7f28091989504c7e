"""What is known of a job, in no vendor's words."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"  # the script has ended, its files are on their way
    FINISHED = "finished"


class Cause(StrEnum):
    """Why a job ended that did not end by itself."""

    ITSELF = ""
    LIMIT = "limit"  # it ran longer than it may
    KILLED = "killed"  # by its owner
    REQUEUED = "requeued"
    HOST = "host"  # a host of it is gone
    DEPENDENCY = "dependency"  # a job it waits for ended otherwise


@dataclass(frozen=True)
class Chunk:
    """What is given on one host; `ranks` is how often the host is named in the list of hosts."""

    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 0
    ranks: int = 1
    host: str = ""  # it must be one of these, parted by blanks


@dataclass
class Job:
    """One job, or one element of an array; `vendor` is what only the vendor's files look into."""

    number: int
    index: int | None
    name: str
    owner: str
    queue: str
    script: str
    cwd: str
    env: dict[str, str]
    chunks: list[Chunk]
    from_host: str = ""
    arrange: str = "free"  # free, pack (all on one host) or scatter (a host for each chunk)
    exclusive: bool = False
    limit: float | None = None  # seconds
    warning: tuple[str, float] | None = None  # a signal and how long before the limit
    rerunnable: bool = True
    holds: list[str] = field(default_factory=list)
    depend: list[tuple[str, list[str]]] = field(default_factory=list)
    after: float = 0.0  # not before this time
    at_once: int | None = None  # elements of the array that may run side by side
    requeue_on: list[int] = field(default_factory=list)  # exit codes
    vendor: dict[str, Any] = field(default_factory=dict)
    state: State = State.QUEUED
    cause: Cause = Cause.ITSELF
    exit: int | None = None  # an exit code, or minus the signal that ended the script
    hosts: list[str] = field(default_factory=list)  # one for each chunk
    queued: float = 0.0
    started: float | None = None
    ended: float | None = None
    changed: float = 0.0
    stopped: float = 0.0  # seconds spent suspended
    runs: int = 0
    by_system: bool = False  # suspended by the system, not by its owner

    @property
    def key(self) -> str:
        """The name of the job between the daemons."""
        return str(self.number) if self.index is None else f"{self.number}[{self.index}]"

    @property
    def places(self) -> list[str]:
        """The job's hosts, each once."""
        return list(dict.fromkeys(self.hosts))

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {**asdict(self), "key": self.key, "places": self.places}


def job_of(record: dict[str, Any]) -> Job:
    """Make a job of what a command sent or the daemon told."""
    known = {name: record[name] for name in Job.__dataclass_fields__ if name in record}
    known["chunks"] = [Chunk(**chunk) for chunk in known["chunks"]]
    known["state"] = State(known.get("state", State.QUEUED))
    known["cause"] = Cause(known.get("cause", Cause.ITSELF))
    known["depend"] = [(kind, list(keys)) for kind, keys in known.get("depend", [])]
    return Job(**known)
