"""Checkpoints of a job: list them, have one go."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from torchloom.server import models
from torchloom.server.auth import Who
from torchloom.server.desk import DeskDep
from torchloom.server.letters import whole
from torchloom.server.paging import Cursor, Limit, cursor_of, place_of
from torchloom.server.problems import declared
from torchloom.weaver import shapes

_WAIT, _MORE = 30.0, 10.0  # seconds until one has gone, and beyond those
Step = Annotated[int, Path(ge=0, lt=1 << 62)]
router = APIRouter(tags=["checkpoints"])


@router.get(
    "/api/jobs/{id}/checkpoints",
    response_model=models.Checkpoints,
    responses=declared(404, 409, 422, 503),
)
async def checkpoints(
    job: models.Name, desk: DeskDep, limit: Limit = 100, cursor: Cursor = None
) -> Any:
    """The checkpoints of a job, newest first, also those that failed or have gone."""
    before = place_of(cursor, int, int, int) if cursor else None
    name = await desk.job(job)
    rows = await desk.read(desk.store.state.checkpoints, name, before, limit + 1)
    page = rows[:limit]
    following = cursor_of(*page[-1].key) if len(rows) > limit else None
    return {"items": whole([shapes.checkpoint_shape(row) for row in page]), "next": following}


@router.delete(
    "/api/jobs/{id}/checkpoints/{step}",
    response_model=models.Checkpoint,
    responses=declared(404, 409, 422, 503),
)
async def remove(
    job: models.Name,
    step: Step,
    desk: DeskDep,
    who: Who,
    force: bool = False,
    reason: Annotated[str, Query(max_length=1000)] = "",
) -> Any:
    """Delete the checkpoint of a step; the newest, or what the job goes on from, by `force` only.

    It says `removing` where whoever sees the store has not done it yet.
    """
    facts = {"job": job, "step": step, "force": force, "reason": reason}
    told = {**facts, "author": who.user, "wait": _WAIT}
    return await desk.link.ask("checkpoint_remove", patience=_WAIT + _MORE, **told)
