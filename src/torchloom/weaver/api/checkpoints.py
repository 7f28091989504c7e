"""Answers at the door about checkpoints: which there are, that one is to go, how one is."""

from typing import Any

from torchloom import settings
from torchloom.errors import NotFound, UserError
from torchloom.rules.checkpoints import CheckpointPhase
from torchloom.weaver import views
from torchloom.weaver.api.request import BadRequest, WeaverRequest, job_named
from torchloom.weaver.service import Weaver
from torchloom.weaver.store.rows import CheckpointRow, JobRow

_PATIENCE, _MOST = 30.0, 600.0  # seconds to wait until one has gone
_ROWS = 10_000
_GOING = (CheckpointPhase.COMMITTED, CheckpointPhase.DAMAGED, CheckpointPhase.REMOVING)


class CheckpointNeeded(UserError):
    """The job has nothing else to go on from, or is at this one."""

    code = "checkpoint_needed"

    def __init__(self, job: JobRow, step: int) -> None:
        self.field = "step"
        self.remedy = "say --force if it is to go all the same"
        super().__init__(
            f"the checkpoint of step {step} is the newest of job {job.id}, or what it goes on from;"
            f" {self.remedy}"
        )


class CheckpointApi:
    """Questions about what is saved."""

    def __init__(self, weaver: Weaver) -> None:
        self._weaver = weaver

    async def checkpoints(self, asked: WeaverRequest) -> list[dict[str, Any]]:
        """The checkpoints of a job, newest first, and those that came to nothing."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        rows = self._weaver.checkpoint_rows.of(job.id)
        return [views.checkpoint_shape(row) for row in rows[: asked.count("limit", _ROWS, _ROWS)]]

    async def checkpoint_remove(self, asked: WeaverRequest) -> dict[str, Any]:
        """Have the checkpoint of a step go; one that the job needs only by force."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        row = self._meant(job, asked)
        if row.state != CheckpointPhase.REMOVING:
            is_needed = (
                row.state == CheckpointPhase.COMMITTED
                and row.step in self._weaver.pruning.held(job)
            )
            if is_needed and not asked.flag("force"):
                raise CheckpointNeeded(job, row.step)
            author = asked.text("author") or settings.user_name()
            row = self._weaver.pruning.remove(row, author, asked.text("reason"))
        patience = asked.seconds("wait", _PATIENCE, _MOST)
        return views.checkpoint_shape(await self._weaver.checkpoint_rows.gone(row, patience))

    async def checkpoint_verified(self, asked: WeaverRequest) -> dict[str, Any]:
        """Take in that all of a checkpoint was read: it is whole, or this file of it is not."""
        job = job_named(self._weaver.jobs, asked.text("job"))
        key = tuple(asked.number(name) for name in ("step", "generation", "attempt"))
        row = next(
            (row for row in self._weaver.checkpoint_rows.committed(job.id) if row.key == key), None
        )
        if row is None:
            raise NotFound("committed checkpoint", "-".join(map(str, key)))
        author = asked.text("author") or settings.user_name()
        said = self._weaver.checkpoints.verified(row, author, asked.text("name"), asked.text("why"))
        return views.checkpoint_shape(said)

    def _meant(self, job: JobRow, asked: WeaverRequest) -> CheckpointRow:
        step = asked.number("step")
        if step is None:
            raise BadRequest("step is missing")
        rows = [row for row in self._weaver.checkpoint_rows.of(job.id) if row.state in _GOING]
        found = next((row for row in rows if row.step == step), None)
        if found is None:
            known = [str(row.step) for row in rows]
            remedy = f"`loom checkpoint ls {job.id}` lists what there is"
            raise NotFound("checkpoint of step", str(step), known, remedy)
        return found
