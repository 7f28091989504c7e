"""What the ranks of a job printed: by rank, gravity, pattern and time, page by page."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field

from torchloom.server.logs import patterns
from torchloom.server.logs.lines import Output, OutputLine, outputs_of, record_of
from torchloom.server.logs.search import MOST_SCANNED, LogQuery, LogSearch, PatternSearch, size_of
from torchloom.server.models.common import Name, seconds_of
from torchloom.server.models.jobs import Level, LogLine
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import declared
from torchloom.server.schema import Schema
from torchloom.server.stream.cursors import Position, parse

router = APIRouter(tags=["logs"])


class LogPage(Schema, schema="LogPage"):
    """Lines by time; `next` continues, and is null when the job is over and all lines were read.

    A page of a search may have few lines, or none, and a `next`: its time was over.
    """

    items: list[LogLine]
    next: str | None
    read: int = Field(description="bytes of the logs that lie before `next`")
    bytes: int = Field(description="bytes that the logs of these ranks have")


@router.get("/api/jobs/{id}/logs", response_model=LogPage, responses=declared(404, 409, 422, 503))
async def logs(
    request: Request,
    access: AccessDep,
    job: Name,
    rank: Annotated[list[int] | None, Query(description="only these ranks; default: all")] = None,
    level: Annotated[Level | None, Query(description="this level or a more severe one")] = None,
    regex: Annotated[
        str | None, Query(description="lines that contain a match of this pattern")
    ] = None,
    since: Annotated[str | None, Query(description="lines from this time on")] = None,
    until: Annotated[str | None, Query(description="lines up to this time")] = None,
    tail: Annotated[
        int | None, Query(ge=0, le=10_000, description="only the newest lines of each rank")
    ] = None,
    cursor: Annotated[str | None, Query(description="the `next` of another page")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Any:
    """Return lines by time; the WebSocket continues from `next` as its `after`."""
    times = seconds_of("since", since), seconds_of("until", until)
    query = LogQuery(level or "", *times, tail)
    at = dict(parse(cursor).logs or {}) if cursor else {}
    name = await access.job(job)
    outputs, is_over = await access.read(_outputs, access, name, rank)
    search: LogSearch | PatternSearch
    if regex is None:
        search = await access.read(LogSearch, outputs, at, query, is_over)
        lines = await access.read(search.take, limit)
    else:
        pool: patterns.Patterns = request.app.state.live.patterns
        await pool.search(patterns.checked(regex), [], patterns.PATIENCE)  # whether it is one
        search = await access.read(PatternSearch, outputs, at, query, is_over)
        lines = await _matching(access, search, pool, regex, limit)
    is_end = search.is_done and (is_over or _is_past(query.until))
    places = search.positions
    following = None if is_end else str(Position(logs={**at, **places}))
    size = await access.read(_size, outputs)
    shapes = [line.shape() for line in lines]
    return {"items": shapes, "next": following, "read": sum(places.values()), "bytes": size}


def _outputs(
    access: PlaneAccess, job: str, ranks: Sequence[int] | None
) -> tuple[list[Output], bool]:
    files = access.files(job)
    record = record_of(files, job)
    is_over = record is not None and record.truth().is_over()
    return outputs_of(record, set(ranks) if ranks else None, files.account), is_over


def _size(outputs: Sequence[Output]) -> int:
    return sum(map(size_of, outputs))


async def _matching(
    access: PlaneAccess, search: PatternSearch, pool: patterns.Patterns, pattern: str, limit: int
) -> list[OutputLine]:
    """Return the lines that match, as many as are wanted or as the time of a page allows."""
    found: list[OutputLine] = []
    budget = patterns.Budget()
    try:
        while len(found) < limit and budget.left > 0 and search.scanned < MOST_SCANNED:
            if search.is_done:
                break
            room = limit - len(found)
            answer = await pool.scan(pattern, search.question(room, budget.left))
            found += await access.read(search.take, answer, room)
    finally:
        search.close()
    return found


def _is_past(seconds: float | None) -> bool:
    return seconds is not None and seconds < time.time()
