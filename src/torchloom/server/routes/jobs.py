"""Jobs: submit, list, show, cancel."""

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from torchloom.sealed import hide_in_spec
from torchloom.server import job_records, submission
from torchloom.server.job_records import job_shape, living_jobs
from torchloom.server.models import jobs as models
from torchloom.server.models.common import (
    AbsolutePath,
    Cursor,
    Key,
    Limit,
    Name,
    cursor_of,
    place_of,
    seconds_of,
)
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import ApiProblem, declared, problem_of
from torchloom.server.security.auth import CallerIdentity, Who
from torchloom.server.security.policy import OPERATOR
from torchloom.server.text import whole
from torchloom.server.weaver_link import WeaverAway, WeaverRefused
from torchloom.specs.states import JobState
from torchloom.weaver.store.reader import JobFilter
from torchloom.weaver.store.rows import SubmissionRow

_SUMMARY = "summary"  # among the facts of a job
_FIRST_ERROR = "first_error"
_HIDDEN = "(hidden)"  # a value that may be a secret
SPEC = {  # what OpenAPI says of a body that is one
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"$ref": "#/components/schemas/JobSpec"}}
            for kind in ("application/json", "application/yaml")
        },
    }
}
SUBMISSION = {  # and of one that may be a batch
    "requestBody": {
        "required": True,
        "content": {
            kind: {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/JobSpec"},
                        {"$ref": "#/components/schemas/JobBatch"},
                    ]
                }
            }
            for kind in ("application/json", "application/yaml")
        },
    }
}
_BULK = 120.0  # seconds for the weaver to answer for many jobs
Text = Annotated[str | None, Query(max_length=300)]
router = APIRouter(tags=["jobs"])


@router.post(
    "/api/jobs",
    status_code=201,
    response_model=models.Submitted,
    responses={
        200: {"model": models.Submitted, "description": "The key was already used for this job."},
        207: {"model": models.SubmittedBatch, "description": "The outcome of each job of a batch."},
        **declared(400, 409, 413, 415, 422, 503),
    },
    openapi_extra=SUBMISSION,
)
async def submit(
    request: Request,
    response: Response,
    access: AccessDep,
    who: Who,
    key: Key = None,
    cwd: AbsolutePath = None,
    python: AbsolutePath = None,
) -> Any:
    """Submit a job. It is stored before the answer; with the same key it is stored once.

    `cwd` is the folder it runs in, `python` the interpreter, both on the plane's host.
    `{"items": [...]}` is a batch: stored in one transaction, answered item by item (207).
    """
    kind, body = request.headers.get("content-type", ""), await request.body()
    spec = await access.read(submission.read_submission, kind, body)
    facts: dict[str, Any] = {"owner": who.user, "author": who.user, "user": who.user}
    facts |= {"cwd": cwd or "", "python": python or ""}
    if isinstance(spec, list):
        return JSONResponse(await _submit_batch(access, spec, key, facts), 207)
    job = await access.link.ask("submit", spec=spec, key=key or uuid.uuid4().hex, **facts)
    response.status_code = 201 if job["created"] else 200
    response.headers["Location"] = f"/api/jobs/{job['id']}"
    return job


@router.get("/api/jobs", response_model=models.Jobs, responses=declared(422, 503))
async def jobs(
    access: AccessDep,
    limit: Limit = 100,
    cursor: Cursor = None,
    state: Annotated[list[JobState] | None, Query(max_length=7)] = None,
    owner: Text = None,
    name: Text = None,
    project: Text = None,
    tag: Text = None,
    since: Text = None,
    until: Text = None,
) -> Any:
    """List jobs, newest first; jobs added meanwhile do not change later pages."""
    wanted = JobFilter(
        states=tuple(map(str, state or ())),
        owner=owner or "",
        name=name or "",
        project=project or "",
        tag=tag or "",
        since=seconds_of("since", since),
        until=seconds_of("until", until),
    )
    before = (*place_of(cursor, float, str),) if cursor else None
    rows = await access.read(access.store.state.page, wanted, before, limit + 1)
    page = rows[:limit]
    following = cursor_of(page[-1].created_at, page[-1].id) if len(rows) > limit else None
    return {"items": await living_jobs(access.link, page), "next": following}


@router.get(
    "/api/jobs/{id}", response_model=models.JobDetail, responses=declared(404, 409, 422, 503)
)
async def job(job: Name, access: AccessDep, who: Who) -> Any:
    """One job with its ranks; while the weaver does not answer, as the database has it."""
    try:
        found: dict[str, Any] = await access.link.ask("job", job=job)
    except WeaverAway:
        row = await access.stored(job)
        if row is None:
            raise
        found = {**job_shape(row), "facts": whole(row.facts), "ranks": None}
    summary = found["facts"].get(_SUMMARY) if JobState(found["state"]).is_final else None
    error = found["facts"].get(_FIRST_ERROR) or None
    more = {"summary": summary, "first_error": error}
    return {**found, "spec": await _spec(access, found["id"], who), **more}


@router.delete("/api/jobs/{id}", response_model=models.Job, responses=declared(404, 409, 422, 503))
async def cancel(
    job: Name,
    access: AccessDep,
    who: Who,
    reason: Annotated[str, Query(max_length=1000)] = "",
) -> Any:
    """Cancel a job: a waiting one leaves the queue, a running one is ended."""
    return await access.link.ask("cancel", job=job, author=who.user, reason=reason)


@router.post(
    "/api/jobs/cancel",
    response_model=models.CancelledBatch,
    responses=declared(400, 413, 422, 503),
)
async def cancel_many(wanted: models.CancelRequest, access: AccessDep, who: Who) -> Any:
    """Cancel jobs by id, or all that are in some states; return the outcome of each.

    Waiting jobs leave the queue together, so none of them is started meanwhile.
    """
    if (wanted.jobs is None) == (wanted.state is None):
        detail = "name either `jobs` by id, or the `state` of those to cancel"
        raise ApiProblem(422, "bad_value", detail, "jobs", 'send `{"state": ["QUEUED"]}`')
    facts = {"jobs": wanted.jobs, "states": wanted.state, "owner": wanted.owner}
    facts |= {"author": who.user, "reason": wanted.reason}
    done = await access.link.ask("cancel_many", patience=_BULK, **facts)
    items = [{"id": reply["job"], **_outcome(reply, 200)} for reply in done["items"]]
    return {"items": items, "left": done["left"]}


@router.get(
    "/api/jobs/{id}/spec", response_model=dict[str, Any], responses=declared(404, 409, 422, 503)
)
async def spec(job: Name, access: AccessDep, who: Who) -> Any:
    """The spec of a job, as it was submitted; viewers do not get values of `env`."""
    name = await access.job(job)
    found = await _spec(access, name, who)
    if found is None:
        remedy = "`loom show --spec` prints what a scheduler was given"
        raise ApiProblem(404, "not_found", f"job {name} was not submitted as a spec", remedy=remedy)
    return found


@router.get(
    "/api/jobs/{id}/ranks", response_model=models.Ranks, responses=declared(404, 409, 422, 503)
)
async def ranks(job: Name, access: AccessDep) -> Any:
    """The ranks of a job: where each runs, and its step."""
    return {"items": await access.link.ask("ranks", job=job)}


@router.get(
    "/api/jobs/{id}/knobs", response_model=models.Knobs, responses=declared(404, 409, 422, 503)
)
async def knobs(job: Name, access: AccessDep) -> Any:
    """The knobs of a job, each with the value that is in force."""
    return {"items": await access.link.ask("knobs", job=job)}


@router.get(
    "/api/jobs/{id}/stacks", response_model=models.Stacks, responses=declared(404, 409, 422, 503)
)
async def stacks(job: Name, access: AccessDep) -> Any:
    """What every rank is doing, and a verdict; for an ended job, the last ones that were kept."""
    return await access.link.ask("stacks", job=job)


@router.get(
    "/api/jobs/{id}/events", response_model=models.Events, responses=declared(404, 409, 422, 503)
)
async def events(job: Name, access: AccessDep, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """The events of a job by time: the newest, or those after a cursor. `next` is always set."""
    after = place_of(cursor, int, int) if cursor else None
    name = await access.job(job)
    items, upto = await access.read(job_records.events, access.store, name, after, limit)
    return {"items": items, "next": cursor_of(*upto)}


@router.get(
    "/api/jobs/{id}/audit", response_model=models.Events, responses=declared(404, 409, 422, 503)
)
async def audited(job: Name, access: AccessDep, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """Commands of users to a job, in order, each with its author."""
    (after,) = place_of(cursor, int) if cursor else (0,)
    name = await access.job(job)
    found = await access.read(job_records.authored, access.store, name, after, limit + 1)
    page = found[:limit]
    following = cursor_of(page[-1]["seq"]) if len(found) > limit else None
    return {"items": page, "next": following}


async def _submit_batch(
    access: PlaneAccess, batch: submission.Batch, key: str | None, facts: dict[str, Any]
) -> dict[str, Any]:
    """Store the valid jobs of a batch together; return the outcome of each."""
    asked = []
    for number, item in enumerate(batch):
        if not isinstance(item, ApiProblem):
            fields = item.model_dump(exclude_none=True)
            asked.append({"key": _key_of(key, number), **fields})
    stored: Iterator[dict[str, Any]] = iter(())
    if asked:
        answer = await access.link.ask("submit_many", patience=_BULK, items=asked, **facts)
        stored = iter(answer)
    return {"items": [_submitted(item, stored) for item in batch]}


def _submitted(
    item: models.JobItem | ApiProblem, stored: Iterator[dict[str, Any]]
) -> dict[str, Any]:
    if isinstance(item, ApiProblem):
        found = problem_of(item)
        return {"status": found["status"], "job": None, "problem": found}
    reply = next(stored)
    return _outcome(reply, 201 if reply.get("ok", {}).get("created") else 200)


def _outcome(reply: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Return the weaver's reply for one of many jobs, as the request for it alone would."""
    if "error" not in reply:
        return {"status": status, "job": reply["ok"], "problem": None}
    found = problem_of(WeaverRefused(reply))
    return {"status": found["status"], "job": None, "problem": found}


def _key_of(key: str | None, number: int) -> str:
    """Return the key of an item that has none: the batch's with its place, or one of its own."""
    if key is None:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{key}\0{number}".encode()).hexdigest()


async def _spec(access: PlaneAccess, job: str, who: CallerIdentity) -> dict[str, Any] | None:
    row = await access.read(access.store.state.one, SubmissionRow, job=job)
    if row is None:
        return None
    spec: dict[str, Any] = hide_in_spec(row.spec)
    if who.may(OPERATOR) or not spec.get("env"):
        return spec
    return {**spec, "env": dict.fromkeys(spec["env"], _HIDDEN)}
