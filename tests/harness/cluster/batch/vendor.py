"""What a batch system decides in its own way, as the queue asks for it."""

from dataclasses import dataclass, field
from typing import Protocol

from .job import Job
from .wire import Message

Steps = list[tuple[str, float]]  # signals, and how long to wait after each


@dataclass
class Site:
    """Where the daemons are and what the administrator has set."""

    server: str  # the name of the queue's host
    home: str  # each daemon's own folder, on its host
    bin: str
    settings: dict[str, float] = field(default_factory=dict)
    queues: list[str] = field(default_factory=list)  # the first is the default


class Vendor(Protocol):
    """PBS or LSF, seen from the queue."""

    site: Site
    depend_holds: bool  # a job that waits for another is held, and deleted when that is in vain
    signals_first_host: bool  # other hosts hear of a job's end alone

    def kill_steps(self, force: bool) -> Steps:
        """Return how a job is killed."""

    def requeue_steps(self) -> Steps:
        """Return how a job is ended that is put back in the queue."""

    def limit_steps(self) -> Steps:
        """Return how a job is ended that has run for too long."""

    def over_limit(self, job: Job, now: float) -> str:
        """Return what the job's stderr is told then."""

    def gives_up(self, job: Job) -> bool:
        """Say whether a job is lost when a host of it has been silent for too long."""

    def start(self, job: Job) -> Message:
        """Return what the first host starts: argv, env, cwds, files, out, err, ..."""

    def task_env(self, job: Job) -> dict[str, str]:
        """Return the environment of a task that brings none."""

    def finish(self, job: Job) -> list[Message]:
        """Return the files that the first host writes when the script has ended."""
