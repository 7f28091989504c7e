"""Preview a command before it is sent."""

import json
from typing import Any

from fastapi import APIRouter

from torchloom.errors import LoomError
from torchloom.server import impact
from torchloom.server.impact import Outlook, Scene
from torchloom.server.models import commands as models
from torchloom.server.models.common import Key, Name
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import ApiProblem, declared, explained, problem_response
from torchloom.server.routes.commands import check
from torchloom.server.security.auth import CallerIdentity, Who
from torchloom.server.security.policy import OPERATOR
from torchloom.server.text import whole
from torchloom.server.weaver_link import WeaverAway
from torchloom.weaver.commands.rows import entry_of
from torchloom.weaver.store.rows import (
    CheckpointRow,
    CommandAck,
    CommandRow,
    JobRow,
    RankProcessRow,
)
from torchloom.weaver.store.series import curves

router = APIRouter(tags=["commands"])


@router.post(
    "/api/jobs/{id}/commands/preview",
    response_model=models.Preview,
    responses=declared(400, 404, 409, 413, 422, 503),
)
async def previewed(
    job: Name,
    asked: models.PreviewRequest,
    access: AccessDep,
    who: Who,
    key: Key = None,
) -> Any:
    """What a command would do: its ranks, step and values before and after. Changes nothing."""
    check(asked)
    name = await access.job(job)
    scene, words = await _scene(access, name), asked.model_dump(exclude_none=True)
    refused, found = None, Outlook()
    try:
        found = impact.outlook(scene, words)
    except LoomError as error:
        refused = json.loads(bytes(explained(error).body))
    refused = _forbidden(who) or refused
    return whole(
        {
            "job": name,
            "verb": asked.verb,
            "ok": refused is None,
            "summary": refused["detail"] if refused else impact.summary(scene, asked.verb, found),
            "ranks": [rank.rank for rank in scene.ranks],
            "effective_step": found.effective_step,
            "changes": list(found.changes),
            "warnings": list(found.warnings),
            "refused": refused,
            "command": impact.command_line(name, words),
        }
    )


async def _scene(access: PlaneAccess, name: str) -> Scene:
    row = await access.stored(name)
    if row is None:
        raise ApiProblem(404, "not_found", f"no job {name}", remedy="GET /api/jobs lists them")
    try:
        found = await access.link.ask("job", job=name)
        knobs = await access.link.ask("knobs", job=name)
    except WeaverAway:
        found, knobs = {"step": row.step, "ranks": []}, []
    took = [rank["step_seconds"] for rank in found["ranks"] if rank["step_seconds"]]
    values = {knob["name"]: knob["value"] for knob in knobs}
    return await access.read(_read, access, row, values, found["step"], min(took, default=None))


def _read(
    access: PlaneAccess, job: JobRow, knobs: dict[str, Any], step: int | None, took: float | None
) -> Scene:
    state = access.store.state
    commands = sorted(state.find(CommandRow, job=job.id), key=lambda row: row.number)
    acks = state.find(CommandAck, command=[row.id for row in commands]) if commands else []
    entries = [entry_of(row, [ack for ack in acks if ack.command == row.id]) for row in commands]
    ranks = state.find(RankProcessRow, job=job.id, state="up")
    names = curves.names(access.store.records, job.id)
    saved = state.find(CheckpointRow, job=job.id, state="committed")
    newest = max((row.step for row in saved), default=None)
    return Scene(job, ranks, knobs, entries, names, step, took, newest)


def _forbidden(who: CallerIdentity) -> dict[str, Any] | None:
    if who.may(OPERATOR):
        return None
    words = f"{who.user} is {who.role}, and this takes {OPERATOR}"
    answer = problem_response(403, "forbidden", words)
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found
