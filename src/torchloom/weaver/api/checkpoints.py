"""Requests about what is kept: the checkpoints of a job, and the runs that are due for removal."""

from typing import Any

from torchloom.errors import LoomError, NotFound, UserError
from torchloom.rules.checkpoints import CheckpointPhase
from torchloom.rules.retention import AGES, Removal, RetentionLimits
from torchloom.weaver import views
from torchloom.weaver.api.request import (
    BadRequest,
    CheckpointsRequest,
    CheckpointVerifiedRequest,
    RemoveCheckpointRequest,
    RemoveJobRequest,
    RetainRequest,
    WeaverRequest,
    job_named,
)
from torchloom.weaver.jobs.registry import is_over
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import CheckpointRow, JobRow

_GOING = (CheckpointPhase.COMMITTED, CheckpointPhase.DAMAGED, CheckpointPhase.REMOVING)


class CheckpointNeeded(UserError):
    """The job has no other checkpoint to resume from, or resumed from this one."""

    code = "checkpoint_needed"

    def __init__(self, job: JobRow, step: int) -> None:
        self.field = "step"
        self.remedy = "use --force to remove it all the same"
        super().__init__(
            f"the checkpoint of step {step} is the newest of {job.id}, or the one it resumed from;"
            f" {self.remedy}"
        )


class CheckpointApi:
    """List, remove and verify checkpoints."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def checkpoints(self, asked: CheckpointsRequest) -> list[dict[str, Any]]:
        """Return the checkpoints of a job, newest first, also those that failed.

        With `wait`, those that its ranks have written are committed before, if that is possible.
        """
        job = job_named(self._weaver.jobs, asked.job)
        await self._weaver.reports.settled(job.id, asked.wait)
        rows = self._weaver.checkpoint_rows.of(job.id)
        return [views.checkpoint_shape(row) for row in rows[: asked.limit]]

    async def checkpoint_remove(self, asked: RemoveCheckpointRequest) -> dict[str, Any]:
        """Remove the checkpoint of a step; one that the job needs only by force."""
        job = job_named(self._weaver.jobs, asked.job)
        row = self._meant(job, asked.step)
        if row.state != CheckpointPhase.REMOVING:
            is_needed = (
                row.state == CheckpointPhase.COMMITTED
                and row.step in self._weaver.pruning.held(job)
            )
            if is_needed and not asked.force:
                raise CheckpointNeeded(job, row.step)
            row = self._weaver.pruning.remove(row, asked.author, asked.reason)
        return views.checkpoint_shape(await self._weaver.checkpoint_rows.gone(row, asked.wait))

    async def checkpoint_verified(self, asked: CheckpointVerifiedRequest) -> dict[str, Any]:
        """Store that a checkpoint was verified: it is intact, or a file of it is damaged."""
        job = job_named(self._weaver.jobs, asked.job)
        key = (asked.step, asked.generation, asked.attempt)
        row = next(
            (row for row in self._weaver.checkpoint_rows.committed(job.id) if row.key == key), None
        )
        if row is None:
            raise NotFound("committed checkpoint", "-".join(map(str, key)))
        done = self._weaver.checkpoints.verified(row, asked.author, asked.name, asked.why)
        return views.checkpoint_shape(done)

    def _meant(self, job: JobRow, step: int | None) -> CheckpointRow:
        if step is None:
            raise BadRequest("step is missing")
        rows = [row for row in self._weaver.checkpoint_rows.of(job.id) if row.state in _GOING]
        found = next((row for row in rows if row.step == step), None)
        if found is None:
            known = [str(row.step) for row in rows]
            remedy = f"`loom checkpoint ls {job.id}` lists them"
            raise NotFound("checkpoint of step", str(step), known, remedy)
        return found


class NotOver(UserError):
    """A job that has not ended cannot be removed."""

    code = "not_over"

    def __init__(self, job: str, state: str) -> None:
        super().__init__(f"{job} is {state}; stop it first: `loom stop {job}`")


class RetentionApi:
    """Remove runs: those that are due, or one by name."""

    def __init__(self, weaver: Weaver) -> None:
        self._jobs = weaver.jobs
        self._retention = weaver.retention

    async def retain(self, asked: RetainRequest) -> list[dict[str, Any]]:
        """Remove what is due, or with `dry` only list it."""
        if asked.dry:
            return [
                _removal_shape(one, False, "would remove") for one in await self._retention.find()
            ]
        done = await self._retention.carry_out()
        return [_removal_shape(one, *outcome) for one, outcome in done]

    async def rules(self, asked: WeaverRequest) -> dict[str, Any]:
        """After how many seconds what is removed, by the config file; `problem` is its error."""
        try:
            limits, problem = await self._retention.limits(), None
        except LoomError as error:
            limits, problem = RetentionLimits(), str(error)
        ages = {name: limits.ages.get(name) for name in AGES}
        pinned = sorted(limits.pinned)
        return {**ages, "keep": limits.keep, "pinned": pinned, "problem": problem}

    async def remove(self, asked: RemoveJobRequest) -> dict[str, Any]:
        """Remove a job that has ended, with all that was stored of it."""
        job = job_named(self._jobs, asked.job)
        if not is_over(job):
            raise NotOver(job.id, job.state)
        await self._retention.remove_now(job.id, asked.author)
        return {"id": job.id}


def _removal_shape(one: Removal, is_done: bool, text: str) -> dict[str, Any]:
    return {"kind": one.what, "job": one.job, "done": is_done, "text": text}
