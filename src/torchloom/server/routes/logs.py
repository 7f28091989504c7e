"""What the ranks of a job printed: by rank, gravity, pattern and time, page by page."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from torchloom.server import models, patterns
from torchloom.server.cursors import Position, parse
from torchloom.server.desk import Desk, DeskDep
from torchloom.server.joblogs import Line, Output, outputs_of, record_of
from torchloom.server.logsearch import CHUNK, Search, Wish
from torchloom.server.paging import seconds_of
from torchloom.server.problems import declared

router = APIRouter(tags=["logs"])

Level = Literal["debug", "info", "warning", "error", "critical"]


class LogLine(BaseModel):
    """A line that a rank printed."""

    time: str | None = Field(description="when it was written, right to a tenth of a second")
    rank: int
    role: str
    stream: Literal["stdout", "stderr"]
    level: Level = Field(
        description="the line's own word for it; without one `info` on stdout, `error` on stderr"
    )
    message: str


class LogPage(BaseModel):
    """Lines by time; `next` reads on, and is null when the job is over and all of it was read."""

    items: list[LogLine]
    next: str | None


@router.get("/api/jobs/{id}/logs", response_model=LogPage, responses=declared(404, 409, 422, 503))
async def logs(
    request: Request,
    desk: DeskDep,
    job: models.Name,
    rank: Annotated[list[int] | None, Query(description="of these ranks; else of all")] = None,
    level: Annotated[Level | None, Query(description="as grave as this, or graver")] = None,
    regex: Annotated[str | None, Query(description="lines that match this somewhere")] = None,
    since: Annotated[str | None, Query(description="written at this time or later")] = None,
    until: Annotated[str | None, Query(description="written at this time or earlier")] = None,
    tail: Annotated[int | None, Query(ge=0, le=10_000, description="the newest of each")] = None,
    cursor: Annotated[str | None, Query(description="the `next` of another page")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Any:
    """Return lines by time; the WebSocket follows them with `next` as its `after`."""
    times = seconds_of("since", since), seconds_of("until", until)
    wish = Wish(level or "", *times, tail)
    at = dict(parse(cursor).logs or {}) if cursor else {}
    name = await desk.job(job)
    search, is_over = await desk.read(_begin, desk, name, rank, at, wish)
    if regex is None:
        lines = await desk.read(search.take, limit)
    else:
        pool: patterns.Patterns = request.app.state.live.patterns
        lines = await _matching(desk, search, pool, patterns.checked(regex), limit)
    is_end = search.is_done and (is_over or _is_past(wish.until))
    following = None if is_end else str(Position(logs={**at, **search.positions}))
    return {"items": [line.shape() for line in lines], "next": following}


def _begin(
    desk: Desk, job: str, ranks: Sequence[int] | None, at: dict[str, int], wish: Wish
) -> tuple[Search, bool]:
    record = record_of(desk.home, job)
    is_over = record is not None and record.truth().is_over()
    outputs: list[Output] = outputs_of(record, set(ranks) if ranks else None)
    return Search(outputs, at, wish, is_over), is_over


async def _matching(
    desk: Desk, search: Search, pool: patterns.Patterns, pattern: str, limit: int
) -> list[Line]:
    """Return the lines that match; behind the last of them the next page begins."""
    found: list[Line] = []
    budget = patterns.Budget()
    while len(found) < limit:
        before = dict(search.positions)
        lines = await desk.read(search.take, CHUNK)
        matches = await pool.search(pattern, [line.text for line in lines], budget.left)
        room = limit - len(found)
        found += [lines[number] for number in matches[:room]]
        if len(matches) > room:
            read = lines[: matches[room - 1] + 1]
            search.positions = before | {line.output.key: line.end for line in read}
            search.is_done = False
        if search.is_spent:
            break
    return found


def _is_past(seconds: float | None) -> bool:
    return seconds is not None and seconds < time.time()
