"""Experiments: search runs, show one, compare several."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from torchloom.server.models import jobs as models
from torchloom.server.models.common import LONGEST_PAGE, Key, Limit, RunId, seconds_of
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import declared
from torchloom.server.routes.jobs import Text
from torchloom.specs.states import JobState
from torchloom.weaver.runs import comparison
from torchloom.weaver.runs import search as runs

router = APIRouter(tags=["experiments"])


@router.get("/api/experiments", response_model=models.Runs, responses=declared(422, 503))
async def listed(
    access: AccessDep,
    limit: Limit = 100,
    cursor: Annotated[str, Query(max_length=LONGEST_PAGE)] = "",
    text: Text = None,
    state: Annotated[list[JobState] | None, Query(max_length=7)] = None,
    owner: Text = None,
    project: Text = None,
    group: Text = None,
    tag: Text = None,
    commit: Text = None,
    where: Annotated[
        list[Annotated[str, Query(max_length=200)]] | None, Query(max_length=20)
    ] = None,
    since: Text = None,
    until: Text = None,
    sort: Text = None,
) -> Any:
    """List runs, newest first; `where` asks for metrics, as in `loss<0.3`.

    `sort` is a member, `config:KEY` or `last:METRIC` (`best`, `min`, `max`); with `-` downwards.
    """
    search = runs.RunSearch(
        text=text or "",
        states=tuple(map(str, state or ())),
        owner=owner or "",
        project=project or "",
        group=group or "",
        tag=tag or "",
        commit=commit or "",
        where=tuple(where or ()),
        since=seconds_of("since", since),
        until=seconds_of("until", until),
        sort=sort or "",
    )
    return await access.read(runs.listed, access.store, search, limit, cursor)


@router.post(
    "/api/experiments/compare",
    response_model=models.Comparison,
    responses=declared(400, 404, 409, 413, 422, 503),
)
async def compared(asked: models.CompareRequest, access: AccessDep, key: Key = None) -> Any:
    """Compare runs: the settings that differ, and the results of each."""
    return await access.read(comparison.compared, access.store, asked.runs)


@router.get(
    "/api/experiments/{run_id}",
    response_model=models.RunDetail,
    responses=declared(404, 409, 422, 503),
)
async def shown(run_id: RunId, access: AccessDep) -> Any:
    """One run with its settings over time, its source, and its artifacts."""
    return await access.read(runs.shown, access.store, run_id)
