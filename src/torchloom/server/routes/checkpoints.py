"""Checkpoints of a job: list, verify, remove."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import HTTPConnection

from torchloom.server.models import commands as models
from torchloom.server.models.common import Cursor, Limit, Name, cursor_of, place_of
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import declared
from torchloom.server.security.auth import Who
from torchloom.server.text import whole
from torchloom.server.verification import Checks
from torchloom.weaver import views

_WAIT, _MORE = 30.0, 10.0  # seconds until one has gone, and beyond those
Step = Annotated[int, Path(ge=0, lt=1 << 62)]
router = APIRouter(tags=["checkpoints"])


@router.get(
    "/api/jobs/{id}/checkpoints",
    response_model=models.Checkpoints,
    responses=declared(404, 409, 422, 503),
)
async def checkpoints(
    job: Name, access: AccessDep, limit: Limit = 100, cursor: Cursor = None
) -> Any:
    """The checkpoints of a job, newest first, including failed and removed ones."""
    before = place_of(cursor, int, int, int) if cursor else None
    name = await access.job(job)
    rows = await access.read(access.store.state.checkpoints, name, before, limit + 1)
    page = rows[:limit]
    following = cursor_of(*page[-1].key) if len(rows) > limit else None
    return {"items": whole([views.checkpoint_shape(row) for row in page]), "next": following}


@router.delete(
    "/api/jobs/{id}/checkpoints/{step}",
    response_model=models.Checkpoint,
    responses=declared(404, 409, 422, 503),
)
async def remove(
    job: Name,
    step: Step,
    access: AccessDep,
    who: Who,
    force: bool = False,
    reason: Annotated[str, Query(max_length=1000)] = "",
) -> Any:
    """Delete the checkpoint of a step; the newest, or the one to resume from, by `force` only.

    The state is `removing` where the process that sees the store has not done it yet.
    """
    facts = {"job": job, "step": step, "force": force, "reason": reason}
    sent = {**facts, "author": who.user, "wait": _WAIT}
    return await access.link.ask("checkpoint_remove", patience=_WAIT + _MORE, **sent)


def _checks_of(connection: HTTPConnection) -> Checks:
    checks: Checks = connection.app.state.checks
    return checks


ChecksDep = Annotated[Checks, Depends(_checks_of)]


@router.post(
    "/api/jobs/{id}/checkpoints/{step}/verify",
    status_code=202,
    response_model=models.Check,
    responses=declared(404, 409, 422, 503),
)
async def verify(job: Name, step: Step, access: AccessDep, checks: ChecksDep, who: Who) -> Any:
    """Start to read and hash the committed checkpoint of a step; the reply does not wait for it.

    The topic `checks` of a page's socket, or GET at the same path, has its progress. A checkpoint
    that is found damaged has that state from then on.
    """
    return await checks.ask(await access.job(job), step, who.user)


@router.get(
    "/api/jobs/{id}/checkpoints/{step}/verify",
    response_model=models.Check,
    responses=declared(404, 409, 422, 503),
)
async def verified(job: Name, step: Step, access: AccessDep, checks: ChecksDep) -> Any:
    """The last check of a step's checkpoint that this server was requested to make."""
    return checks.get(await access.job(job), step)
