"""Order checkpoints by time, by the end of an allocation, or by a signal to a rank."""

import hashlib
import time
from collections.abc import Callable

from torchloom.rules.checkpoints import is_due
from torchloom.rules.control.command import Command, CommandKind
from torchloom.specs.states import JobState
from torchloom.weaver.checkpoints.requests import LOOM, CheckpointRows
from torchloom.weaver.commands.driver import CommandDriver
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.events import RankEventReported
from torchloom.weaver.jobs.registry import DEADLINE, SAVING, JobRegistry
from torchloom.weaver.store.rows import JobRow

MARGIN = 120.0  # seconds before the end of an allocation in which a job is saved
MOMENT = 5.0  # seconds in which the requests of several ranks are one


class CheckpointTriggers:
    """Orders checkpoints that are due, or that a rank requests."""

    def __init__(
        self,
        jobs: JobRegistry,
        command_rows: CommandRows,
        commands: CommandDriver,
        rows: CheckpointRows,
        margin: float = MARGIN,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._jobs = jobs
        self._command_rows = command_rows
        self._commands = commands
        self._rows = rows
        self._margin = margin
        self._now = now

    def on_rank_event(self, reported: RankEventReported) -> None:
        """Order the checkpoint that a rank requests; requests within a moment are one."""
        job, event = self._jobs.get(reported.rank.job), reported.event
        if event.kind != "checkpoint_wanted" or job is None:
            return
        why = str(event.facts.get("why") or "requested by a rank")[:100]
        wanted = [row for row in self._asked(job) if row[1] == why]
        is_new = all(abs(self._now() - asked) >= MOMENT for asked, _ in wanted)
        if is_new and not self._is_asked(job):
            name = f"{job.id}\0{why}\0{len(wanted)}"
            self._order(job, name, why)

    def check(self) -> None:
        """Order the checkpoints that are due."""
        for job in self._jobs.active():
            if job.state == JobState.RUNNING:
                self._check(job)

    def _check(self, job: JobRow) -> None:
        deadline, now = job.facts.get(DEADLINE), self._now()
        if type(deadline) in (int, float) and deadline - self._margin <= now < deadline:
            self._order_once(job, f"deadline\0{job.id}\0{deadline}", "the allocation ends soon")
        saving = job.facts.get(SAVING) or {}
        every = saving.get("every_n_seconds")
        if every is None or not is_due(every, self._times(job, saving.get("since")), now):
            return
        if not self._is_asked(job):
            self._order(job, f"every\0{job.id}\0{now}", f"every {every:g} s")

    def _times(self, job: JobRow, since: object) -> list[float]:
        """Return when checkpoints were started or ordered, and since when they are configured."""
        begun = [row.created_at for row in self._rows.of(job.id)]
        asked = [at for at, _ in self._asked(job)]
        first = float(since) if isinstance(since, int | float) else job.created_at
        return [first, *begun, *asked]

    def _asked(self, job: JobRow) -> list[tuple[float, str]]:
        rows = self._command_rows.audit(job.id)
        return [(row.asked_at, row.reason) for row in rows if row.kind == CommandKind.CHECKPOINT]

    def _is_asked(self, job: JobRow) -> bool:
        """Tell whether a checkpoint is ordered already."""
        state = self._commands.state(job.id)
        return any(
            e.command.kind is CommandKind.CHECKPOINT for e in (*state.queue, *state.standing)
        )

    def _order_once(self, job: JobRow, name: str, reason: str) -> None:
        if self._command_rows.job_of(_id(name)) is None:
            self._order(job, name, reason)

    def _order(self, job: JobRow, name: str, reason: str) -> None:
        self._commands.order(job.id, Command(_id(name), CommandKind.CHECKPOINT, {}, LOOM, reason))


def _id(name: str) -> str:
    """Return the id of a command; the same name has the same id."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
