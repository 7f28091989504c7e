"""Find what is to be hit: a job of this user that runs here, its ranks, and the plane's parts.

A process is known by its pid and its start time, from the run's own record or from the plane's own
answer; a pid that somebody else has by now is never hit.
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

PATIENCE = 5.0  # seconds for the weaver's answer: whoever was just killed is not there
_FOR_A_STEP = 30.0  # seconds for the ranks to come to a step
PARTS = ("agent", "weaver", "nats")
Undo = Mapping[str, Any]  # what takes a fault away again: `do`, and what that needs to know


class TargetOver(UserError):
    """Nothing is left to be hit."""

    code = "job_over"

    def __init__(self, job: str, state: str) -> None:
        super().__init__(f"{job} is over ({state.lower()}); name one that runs, `loom ls` lists")


class NotYours(UserError):
    """Somebody else's job is not for us to hurt."""

    code = "not_yours"

    def __init__(self, job: str, owner: str) -> None:
        super().__init__(f"{job} is {owner}'s; only {owner} may have chaos in it")


@dataclass(frozen=True, slots=True)
class Aim:
    """What is about to be hit, and how that is taken back."""

    target: Target
    undo: Undo | None = None
    process: ProcessIdentity | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSight:
    """A job as the weaver sees it at one moment."""

    state: str
    generation: int
    steps: Mapping[int, int | None]  # of its ranks that are up
    pids: Mapping[int, int]  # of the same
    size: int
    has_plane: bool = True  # weaver, NATS and an agent work together

    @property
    def is_whole(self) -> bool:
        """Tell whether every rank is up and has taken a step that is known."""
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
    """The job that faults are for."""

    job: str
    folder: Path

    def record(self) -> RunRecord:
        """Return what its launch process says of it now."""
        return RunFolder(self.folder).record().truth()

    def ranks(self) -> dict[int, ProcessIdentity]:
        """Return the processes of its ranks that live on this host."""
        here = host_name()
        found: dict[int, ProcessIdentity] = {}
        for rank in self.record().ranks:
            process = rank.process
            if process is not None and process.host == here and process.is_alive():
                found.setdefault(rank.rank, process)
        return found

    @contextmanager
    def logged(self, log: str) -> Iterator[str]:
        """Have the ranks write a step digest log of this name meanwhile; yield why not, if so."""
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
        return "" if is_on else f"no step digest log: no step began within {_FOR_A_STEP:g} s"

    def see(self) -> JobSight | None:
        """Return how the weaver sees it; nothing while that does not answer."""
        try:
            status = plane.ask("status", PATIENCE)
            return _sight(plane.ask("job", PATIENCE, job=self.job), status)
        except (LoomError, OSError):
            return None


def find(reference: str | None) -> Victim:
    """Return the job that is meant, if it may be hurt."""
    record = find_job(reference)
    if record.owner and record.owner != (me := settings.user_name()):
        raise NotYours(record.id, record.owner or me)
    if record.is_over():
        raise TargetOver(record.id, record.state.name)
    return Victim(record.id, RunFolder.named(record.id).path)


def part(name: str) -> ProcessIdentity | None:
    """Return the process that is this part of the plane now; nothing where there is none."""
    try:
        found = plane.find()
    except (LoomError, OSError):
        return None
    pid = (found or {}).get("parts", {}).get(name, {}).get("pid")
    return ProcessIdentity.of(pid) if pid else None


def target_of(
    what: str, process: ProcessIdentity, rank: int | None = None, name: str = ""
) -> Target:
    """Return how a process is written down that is hit."""
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
