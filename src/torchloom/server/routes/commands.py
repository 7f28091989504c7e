"""Send commands to a running job, and list them."""

import hashlib
from typing import Any

from fastapi import APIRouter, Response

from torchloom.server import job_records
from torchloom.server.models import commands as models
from torchloom.server.models.common import CommandId, Cursor, Key, Limit, Name, cursor_of, place_of
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import ApiProblem, declared
from torchloom.server.security.auth import Who

_MORE = 10.0  # seconds beyond those that the weaver is asked to wait
_ONLY = {
    **dict.fromkeys(("values", "hold", "guard", "span"), ("set",)),
    "command": ("undo",),
    "release": ("pause",),
    **dict.fromkeys(("from_step", "until", "from_scratch", "distributed", "unpause"), ("resume",)),
    "workers": ("resume", "resize"),
}
router = APIRouter(tags=["commands"])


@router.post(
    "/api/jobs/{id}/commands",
    response_model=models.Command,
    responses={
        202: {"model": models.Command, "description": "Accepted; the outcome is still pending."},
        **declared(400, 404, 409, 413, 422, 503),
    },
)
async def command(
    job: Name,
    asked: models.CommandRequest,
    response: Response,
    access: AccessDep,
    who: Who,
    key: Key = None,
) -> Any:
    """Send a command that all ranks apply at one step; the reply has its outcome."""
    name = await access.job(job)
    facts = asked.model_dump(exclude_none=True, exclude={"verb"})
    check(asked)
    if key is not None:
        facts["id"] = _id(who.user, name, key)
        if known := await _known(access, name, facts["id"], asked):
            return _answered(known, response)
    patience = asked.wait + _MORE
    sent = {**facts, "job": name, "author": who.user}
    found = await access.link.ask(asked.verb, patience=patience, **sent)
    return _answered(found, response)


@router.get(
    "/api/jobs/{id}/commands",
    response_model=models.Commands,
    responses=declared(404, 409, 422, 503),
)
async def commands(job: Name, access: AccessDep, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """Every command of a job in order, with what each rank did."""
    (after,) = place_of(cursor, int) if cursor else (-1,)
    name = await access.job(job)
    found = await access.read(job_records.commands, access.store, name, after, limit + 1)
    page = found[:limit]
    following = cursor_of(page[-1]["number"]) if len(found) > limit else None
    return {"items": page, "next": following}


@router.get(
    "/api/jobs/{id}/commands/{command}",
    response_model=models.Command,
    responses=declared(404, 409, 422, 503),
)
async def one(job: Name, command: CommandId, access: AccessDep) -> Any:
    """One command, as it stands."""
    name = await access.job(job)
    found = await access.read(job_records.command, access.store, name, command)
    if found is None:
        remedy = f"GET /api/jobs/{name}/commands lists them"
        raise ApiProblem(404, "not_found", f"job {name} has no such command", remedy=remedy)
    return found


def check(asked: models.CommandRequest) -> None:
    """Refuse what would silently be left out."""
    if asked.verb == "set" and not asked.values:
        remedy = 'give {"values": {"lr": 0.01}}'
        raise ApiProblem(422, "bad_value", "set needs values", "values", remedy)
    if asked.verb == "resize" and asked.workers is None:
        raise ApiProblem(422, "bad_value", "resize needs workers", "workers", 'give {"workers": 4}')
    for name, verbs in _ONLY.items():
        if asked.verb not in verbs and name in asked.model_fields_set and getattr(asked, name):
            detail = f"{name} is for {' and '.join(verbs)}, not for {asked.verb}"
            raise ApiProblem(422, "bad_value", detail, name, "leave it out")


def _id(user: str, job: str, key: str) -> str:
    """Return the command's id for a key: the same on every server, another for every other user."""
    return hashlib.sha256("\0".join((user, job, key)).encode()).hexdigest()[:32]


async def _known(
    access: PlaneAccess, job: str, name: str, asked: models.CommandRequest
) -> dict[str, Any] | None:
    """Return the command that this key was used for before, if there is nothing left to do."""
    known = await access.read(job_records.command, access.store, job, name)
    if known is None:
        return None
    if not job_records.is_same(asked.model_dump(exclude_none=True), known):
        remedy = "use a new key for another request"
        raise ApiProblem(
            409, "key_reused", "this key was used for another command", "Idempotency-Key", remedy
        )
    return known if known["ended_at"] or asked.verb == "undo" else None


def _answered(found: dict[str, Any], response: Response) -> dict[str, Any]:
    if not found["ended_at"]:
        response.status_code = 202
        response.headers["Location"] = f"/api/jobs/{found['job']}/commands/{found['id']}"
    return found
