"""Check a spec before it is submitted, and return it as YAML."""

import json
from typing import Any

from fastapi import APIRouter, Request

from torchloom.server import submission
from torchloom.server.models import jobs as models
from torchloom.server.models.common import Key
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import ApiProblem, declared, problem_response
from torchloom.server.routes.jobs import SPEC
from torchloom.server.text import whole

_DEEPEST = 32  # levels of the returned data; no spec has so many
router = APIRouter(tags=["jobs"])


@router.post(
    "/api/specs/check",
    response_model=models.CheckedSpec,
    responses=declared(400, 413, 422, 503),
    openapi_extra=SPEC,
)
async def checked(request: Request, access: AccessDep, key: Key = None) -> Any:
    """Whether a spec would be accepted, and if not, why; JSON or YAML. Nothing is submitted."""
    kind, body = request.headers.get("content-type", ""), await request.body()
    return await access.read(_looked_at, kind, body)


def _looked_at(kind: str, body: bytes) -> dict[str, Any]:
    data, refused = None, None
    try:
        data = submission.read(kind, body)
        submission.fit(data)
    except ApiProblem as problem:
        refused = _problem(problem)
    spec = _plain(data)
    yaml = (
        submission.yaml_of(spec)
        if spec is not None and len(body) <= submission.LONGEST_YAML
        else None
    )
    return {"ok": refused is None, "spec": spec, "yaml": yaml, "refused": refused}


def _plain(data: object) -> dict[str, Any] | None:
    """Return what was read as JSON has it; nothing where that is no mapping, or no JSON."""
    if not isinstance(data, dict) or _is_deep(data, _DEEPEST):
        return None
    try:
        found: dict[str, Any] = whole(json.loads(json.dumps(data, allow_nan=False)))
    except (ValueError, TypeError):
        return None
    return found


def _is_deep(value: object, left: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_is_deep(each, left - 1) for each in inside)


def _problem(problem: ApiProblem) -> dict[str, Any]:
    facts = (problem.status_code, problem.code, problem.detail, problem.field, problem.remedy)
    found: dict[str, Any] = json.loads(bytes(problem_response(*facts).body))
    return found
