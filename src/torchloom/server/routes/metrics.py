"""Curves of a job: thinned to buckets that hide no peak, or point by point."""

import math
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import Field, StringConstraints

from torchloom.errors import UserError
from torchloom.server.models.common import Name, seconds_of
from torchloom.server.models.jobs import CurveColumns, PointColumns
from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import declared
from torchloom.server.schema import Schema
from torchloom.server.stream.cursors import BadStreamCursor
from torchloom.server.stream.payloads import columns
from torchloom.weaver.store.rows import PointRow
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.records import RecordStore

router = APIRouter(tags=["metrics"])

_NARROWINGS = 3  # looks at thousand buckets each until a time is found among 10^9 steps
_LOOK = 1000
_LARGEST = 2**63 - 1
Text = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
RankNumber = Annotated[int, Field(ge=-1, le=2**31)]


class Curves(Schema, schema="Curves"):
    """The metrics of a job."""

    job: str
    names: list[str] = Field(description="the names of all metrics of the job")
    series: list[CurveColumns] | list[PointColumns]
    next: str | None = Field(description="with `raw`: the cursor of the next page")


class RawReplaced(UserError):
    """Every point was requested of what comes in buckets only."""

    code = "bad_value"
    field = "replaced"
    remedy = "leave out `raw`, or `replaced`"

    def __init__(self) -> None:
        super().__init__("replaced points come in buckets, not page by page")


class NoRange(UserError):
    """A range that ends before it begins."""

    code = "bad_value"
    field = "last"
    remedy = "give `first` and `last` as steps, the smaller one first"

    def __init__(self) -> None:
        super().__init__("the range of steps ends before it begins")


@router.get(
    "/api/jobs/{id}/metrics",
    response_class=Response,
    responses={200: {"model": Curves}, **declared(404, 409, 422, 503)},
)
async def metrics(
    access: AccessDep,
    job: Name,
    name: Annotated[
        list[Text] | None, Query(description="only these metrics; default: all")
    ] = None,
    rank: Annotated[
        list[RankNumber] | None, Query(description="only these ranks; default: all")
    ] = None,
    first: Annotated[
        int | None, Query(ge=-_LARGEST, le=_LARGEST, description="from this step on")
    ] = None,
    last: Annotated[
        int | None, Query(ge=-_LARGEST, le=_LARGEST, description="up to this step")
    ] = None,
    since: Annotated[str | None, Query(description="from this time on")] = None,
    until: Annotated[str | None, Query(description="up to this time")] = None,
    buckets: Annotated[
        int, Query(ge=1, le=20_000, description="maximum number of points per series")
    ] = 1000,
    replaced: Annotated[
        bool, Query(description="also the points that later generations have replaced")
    ] = False,
    raw: Annotated[bool, Query(description="every point, page by page")] = False,
    limit: Annotated[
        int, Query(ge=1, le=100_000, description="with `raw`: number of points")
    ] = 10_000,
    cursor: Annotated[
        str | None, Query(description="with `raw`: `next` of the previous page")
    ] = None,
) -> Response:
    """Return curves for a range of steps or time: the minimum, maximum and last of each bucket."""
    times = seconds_of("since", since), seconds_of("until", until)
    if first is not None and last is not None and first > last:
        raise NoRange
    if raw and replaced:
        raise RawReplaced
    found = await access.job(job)
    records, wanted = access.store.records, (found, name, rank)
    if times != (None, None):
        first, last = await access.read(_steps, records, wanted, (first, last), times)
    names = await access.read(curves.names, records, found)
    if raw:
        page = await access.read(_points, records, wanted, (first, last), limit, cursor)
        return _answer(
            {"job": found, "names": names, "series": _by_series(page), "next": page.next}
        )
    asked = (found, name, rank, first, last, buckets, replaced)
    drawn = await access.read(curves.curves, records, *asked)
    return _answer(
        {"job": found, "names": names, "series": list(map(columns, drawn)), "next": None}
    )


Wanted = tuple[str, Collection[str] | None, Collection[int] | None]
Range = tuple[int | None, int | None]
Times = tuple[float | None, float | None]
_NOTHING: Range = (1, 0)


def _points(
    records: RecordStore, wanted: Wanted, steps: Range, limit: int, cursor: str | None
) -> curves.PointPage:
    try:
        return curves.points(records, *wanted, *steps, limit, cursor)
    except ValueError as error:
        raise BadStreamCursor from error


def _steps(records: RecordStore, wanted: Wanted, steps: Range, times: Times) -> Range:
    """Return the steps that were done between two times; each look narrows them down."""
    for _ in range(_NARROWINGS):
        drawn = curves.curves(records, *wanted, *steps, _LOOK)
        found = [ends for curve in drawn if (ends := _inside(curve, times)) is not None]
        if not found:
            return _NOTHING
        steps = min(first for first, _ in found), max(last for _, last in found)
    return steps


def _inside(curve: curves.Curve, times: Times) -> tuple[int, int] | None:
    """Return the steps of the buckets that may have something of a time, the first and the last.

    A bucket knows the time of its last step; so it begins where the one before it ends.
    """
    since, until = times
    begins = [-math.inf, *curve.time[:-1]]
    ends = [
        (first, last)
        for first, last, begin, end in zip(
            curve.step_first, curve.step_last, begins, curve.time, strict=True
        )
        if (since is None or end >= since)
        and (until is None or (end if first == last else begin) <= until)
    ]
    return (ends[0][0], ends[-1][1]) if ends else None


def _by_series(page: curves.PointPage) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int, str], list[PointRow]] = {}
    for point in page.points:
        groups.setdefault((point.name, point.rank, point.role), []).append(point)
    return [
        {
            "name": name,
            "rank": rank,
            "role": role,
            "steps": [point.step for point in points],
            "times": [point.time for point in points],
            "values": [point.value for point in points],
        }
        for (name, rank, role), points in groups.items()
    ]


def _answer(found: dict[str, Any]) -> Response:
    """Return JSON that is written in one go: a chart has some hundred thousand numbers."""
    return Response(msgspec.json.encode(found), media_type="application/json")
