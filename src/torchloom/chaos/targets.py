"""Find the targets: a running job of this user, its ranks on this host, and the plane's parts.

A process is identified by its pid and start time, from the run's record or the plane's reply, so
that a pid that was reused is never hit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.chaos.record import Target
from torchloom.client import plane
from torchloom.errors import LoomError, UserError
from torchloom.launch.host.identity import ProcessIdentity, host_name
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.runner.job_lookup import find_job

PATIENCE = 5.0  # seconds for the weaver's reply: it may just have been killed
_FOR_A_STEP = 30.0  # seconds for the ranks to reach a step
PARTS = ("agent", "weaver", "nats")
Undo = Mapping[str, Any]  # how to undo a fault: `do` and its parameters


class TargetOver(UserError):
    """The job has ended."""

    code = "job_over"

    def __init__(self, job: str, state: str) -> None:
        super().__init__(f"{job} has ended ({state.lower()}); name a running job of `loom ls`")


class NotYours(UserError):
    """The job belongs to another user."""

    code = "not_yours"

    def __init__(self, job: str, owner: str) -> None:
        super().__init__(f"{job} belongs to {owner}; only {owner} may inject faults into it")


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a fault, and how to undo it."""

    target: Target
    undo: Undo | None = None
    process: ProcessIdentity | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSight:
    """A job as the weaver knows it at one moment."""

    state: str
    generation: int
    steps: Mapping[int, int | None]  # of its ranks that are up
    pids: Mapping[int, int]  # of the same
    size: int
    has_plane: bool = True  # weaver, NATS and an agent work together

    @property
    def is_whole(self) -> bool:
        """Tell whether every rank is up and has a known step."""
        known = [step for step in self.steps.values() if step is not None]
        return self.has_plane and self.state == "RUNNING" and 0 < self.size == len(known)

    @property
    def is_over(self) -> bool:
        return self.state in ("COMPLETED", "FAILED", "CANCELLED")

    @property
    def step(self) -> int | None:
        """Return the lowest step."""
        return min((step for step in self.steps.values() if step is not None), default=None)


@dataclass(frozen=True, slots=True)
class Victim:
    """The job into which faults are injected."""

    job: str
    folder: Path

    def record(self) -> RunRecord:
        """Return the current record of its launch process."""
        return RunFolder(self.folder).record().truth()

    def ranks(self) -> dict[int, ProcessIdentity]:
        """Return the live processes of its ranks on this host."""
        here = host_name()
        found: dict[int, ProcessIdentity] = {}
        for rank in self.record().ranks:
            process = rank.process
            if process is not None and process.host == here and process.is_alive():
                found.setdefault(rank.rank, process)
        return found

    @contextmanager
    def logged(self, log: str) -> Iterator[str]:
        """Make the ranks write a step digest log of this name; yield why not, if that failed."""
        why = self._log(log)
        try:
            yield why
        finally:
            if not why and not self.record().is_over():
                self._log("")

    def _log(self, log: str) -> str:
        facts = {"job": self.job, "log": log, "wait": _FOR_A_STEP, "reason": "loom chaos"}
        try:
            answer = plane.ask("digest", _FOR_A_STEP + PATIENCE, **facts)
        except (LoomError, OSError) as error:
            return f"no step digest log: {error}"
        is_on = answer["state"] == "applied"
        return "" if is_on else f"no step digest log: no step within {_FOR_A_STEP:g} s"

    def see(self) -> JobSight | None:
        """Return the job as the weaver knows it; None while the weaver does not reply."""
        try:
            status = plane.ask("status", PATIENCE)
            return _sight(plane.ask("job", PATIENCE, job=self.job), status)
        except (LoomError, OSError):
            return None


def find(reference: str | None) -> Victim:
    """Return the job, if faults may be injected into it."""
    record = find_job(reference)
    if record.owner and record.owner != (me := settings.user_name()):
        raise NotYours(record.id, record.owner or me)
    if record.is_over():
        raise TargetOver(record.id, record.state.name)
    return Victim(record.id, RunFolder.named(record.id).path)


def part(name: str) -> ProcessIdentity | None:
    """Return the process of a part of the plane; None if it is not running."""
    try:
        found = plane.find()
    except (LoomError, OSError):
        return None
    pid = (found or {}).get("parts", {}).get(name, {}).get("pid")
    return ProcessIdentity.of(pid) if pid else None


def target_of(
    what: str, process: ProcessIdentity, rank: int | None = None, name: str = ""
) -> Target:
    """Return a process as the target of a fault."""
    return Target(what, rank, process.pid, process.started, process.host, name)


def _sight(found: Mapping[str, Any], status: Mapping[str, Any]) -> JobSight:
    up = [rank for rank in found["ranks"] if rank["state"] in ("up", "suspect")]
    return JobSight(
        state=found["state"],
        generation=int(found["generation"] or 0),
        steps={rank["rank"]: rank["step"] for rank in up},
        pids={rank["rank"]: rank["pid"] for rank in up},
        size=int(found["world_size"] or 0),
        has_plane=bool(status["connected"] and status["agents"]),
    )
