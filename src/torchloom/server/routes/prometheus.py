"""What Prometheus scrapes: the plane, active jobs and this server, in numbers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from torchloom.rules.checkpoints import CheckpointPhase
from torchloom.server.access_log import Counts
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import declared
from torchloom.server.stream.hub import Hub
from torchloom.server.weaver_link import WeaverAway
from torchloom.specs.states import JobState

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_PATIENCE = 5.0  # seconds for the weaver; who scrapes waits no longer
_JOBS, _RANKS = 50, 64  # active jobs, and ranks of each, that are shown one by one
_GAUGES = {
    "epoch": "Starts of the weaver so far.",
    "agents": "Node agents that are there.",
    "ranks": "Ranks that are up.",
    "backlog": "Batches of records that wait to be stored.",
}


Labels = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with its labels; `suffix` is of a histogram's parts."""

    value: float
    labels: Labels
    suffix: str = ""


def family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> str:
    """Return all samples of one metric."""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    lines += [
        f"{name}{each.suffix}{_labels(each.labels)} {_number(each.value)}" for each in samples
    ]
    return "\n".join(lines) + "\n"


def gauge(name: str, words: str, value: float) -> str:
    """Return a metric of one number."""
    return family(name, "gauge", words, [Sample(value, {})])


def requests(counts: Counts) -> str:
    """Return what the server counted."""
    totals = (
        Sample(count, {"method": method, "path": path, "status": status})
        for (method, path, status), count in sorted(counts.requests.items())
    )
    parts = (
        sample
        for (method, path), durations in sorted(counts.durations.items())
        for sample in _histogram(
            {"method": method, "path": path}, durations.cumulative(), durations.total
        )
    )
    return family(
        "torchloom_http_requests_total", "counter", "Requests that were answered.", totals
    ) + family("torchloom_http_request_seconds", "histogram", "How long answers took.", parts)


def _histogram(
    labels: Labels, buckets: Iterable[tuple[str, int]], total: float
) -> Iterable[Sample]:
    count = 0
    for bound, count in buckets:
        yield Sample(count, {**labels, "le": bound}, "_bucket")
    yield Sample(total, labels, "_sum")
    yield Sample(count, labels, "_count")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    shown = (f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return "{" + ",".join(shown) + "}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {MEDIA: {}}, "description": "Prometheus text."},
        **declared(503),
    },
)
async def prometheus(request: Request, access: AccessDep) -> Response:
    """Return numbers; while the weaver is away those that it would tell are left out."""
    counts: Counts = request.app.state.counts
    hub: Hub = request.app.state.live
    parts = await _plane(access)
    parts.append(gauge("torchloom_stream_listeners", "Streams that are open.", hub.listeners))
    parts.append(requests(counts))
    return Response("".join(parts), media_type=MEDIA)


async def _plane(access: PlaneAccess) -> list[str]:
    words = "Whether the weaver answers."
    try:
        status = await access.link.ask("status", patience=_PATIENCE)
        states = await access.read(access.store.state.by_state)
        jobs = await access.link.ask("jobs", patience=_PATIENCE, active=True, limit=_JOBS)
        saved = await access.read(access.store.state.saved)
        last = await access.read(access.store.state.last_saved, [job["id"] for job in jobs])
        asked = [access.link.ask("ranks", patience=_PATIENCE, job=job["id"]) for job in jobs]
        ranks = await asyncio.gather(*asked)
    except WeaverAway:
        return [gauge("torchloom_weaver_up", words, 0)]
    return [
        gauge("torchloom_weaver_up", words, 1),
        *(gauge(f"torchloom_{name}", said, status[name]) for name, said in _GAUGES.items()),
        *_counted(status),
        _states(states),
        *_active(jobs, ranks),
        *_saved(jobs, saved, last),
    ]


def _counted(status: Mapping[str, Any]) -> Iterable[str]:
    stored = [Sample(status["stored"], {})]
    dropped = [Sample(n, {"reason": why}) for why, n in sorted(status["dropped"].items())]
    yield family("torchloom_records_stored_total", "counter", "Records stored.", stored)
    yield family("torchloom_dropped_total", "counter", "What was not taken in, by why.", dropped)


def _states(states: Mapping[str, int]) -> str:
    samples = (Sample(states.get(str(state), 0), {"state": str(state)}) for state in JobState)
    return family("torchloom_jobs", "gauge", "Jobs by state.", samples)


def _active(jobs: list[dict[str, Any]], ranks: list[list[dict[str, Any]]]) -> Iterable[str]:
    steps = [Sample(job["step"], _of(job)) for job in jobs if job["step"] is not None]
    yield family("torchloom_job_step", "gauge", "The step that all ranks have reached.", steps)
    seconds = (
        Sample(rank["step_seconds"], {**_of(job), "role": rank["role"], "rank": rank["rank"]})
        for job, its in zip(jobs, ranks, strict=True)
        for rank in its[:_RANKS]
        if rank["step_seconds"] is not None
    )
    yield family("torchloom_rank_step_seconds", "gauge", "How long the last step took.", seconds)


def _saved(
    jobs: list[dict[str, Any]], saved: Mapping[str, int], last: Mapping[str, float]
) -> Iterable[str]:
    samples = (Sample(saved.get(str(phase), 0), {"state": str(phase)}) for phase in CheckpointPhase)
    yield family("torchloom_checkpoints", "gauge", "Checkpoints by what became of them.", samples)
    moments = (Sample(last[job["id"]], _of(job)) for job in jobs if job["id"] in last)
    words = "When the last checkpoint was committed, in unix seconds."
    yield family("torchloom_job_checkpoint_timestamp_seconds", "gauge", words, moments)


def _of(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"job": job["id"], "name": job["name"]}
