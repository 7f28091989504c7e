"""What Prometheus scrapes: the plane, active jobs and this server, as metrics.

`prometheus_client` is imported by the first scrape: it takes 40 ms that no other request needs.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from torchloom.rules.checkpoints import CheckpointPhase
from torchloom.server.access_log import Counts
from torchloom.server.plane_access import AccessDep, PlaneAccess
from torchloom.server.problems import declared
from torchloom.server.stream.hub import Hub
from torchloom.server.weaver_link import WeaverAway
from torchloom.specs.states import JobState

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE = 5.0  # seconds for the weaver's replies
_JOBS, _RANKS = 50, 64  # active jobs, and ranks of each, that have samples of their own
_JOB = ("job", "name")
_GAUGES = {
    "epoch": "Starts of the weaver so far.",
    "agents": "Node agents that are connected.",
    "ranks": "Ranks that are up.",
    "backlog": "Batches of records waiting to be stored.",
}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlaneReading:
    """What the weaver and the database returned for one scrape; `ranks` are those of each job."""

    status: Row
    states: Mapping[str, int]
    jobs: Sequence[Row]
    ranks: Sequence[Sequence[Row]]
    saved: Mapping[str, int]
    last_saved: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)  # a registry keeps it by its identity
class ScrapeCollector:
    """Collects the metrics of one scrape; without a reading of the plane those of the server."""

    counts: Counts
    listeners: int
    plane: PlaneReading | None

    def collect(self) -> "Iterator[Metric]":
        """Yield the metric families, in the order in which they are shown."""
        up = 0 if self.plane is None else 1
        yield _gauge("torchloom_weaver_up", "Whether the weaver answers.", [((), up)])
        if self.plane is not None:
            yield from _plane_metrics(self.plane)
        yield _gauge("torchloom_stream_listeners", "Open streams.", [((), self.listeners)])
        yield from _server_metrics(self.counts)


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
    """Return numbers; while the weaver does not answer, its numbers are left out."""
    counts: Counts = request.app.state.counts
    hub: Hub = request.app.state.live
    scrape = ScrapeCollector(counts, hub.listeners, await _read_plane(access))
    return Response(exposition(scrape), media_type=MEDIA)


def exposition(scrape: ScrapeCollector) -> bytes:
    """Return the metrics of a scrape as Prometheus text."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(scrape)
    return generate_latest(registry)


async def _read_plane(access: PlaneAccess) -> PlaneReading | None:
    """Ask the weaver and the database; return nothing while the weaver does not answer."""
    try:
        status = await access.link.ask("status", patience=_PATIENCE)
        states = await access.read(access.store.state.by_state)
        jobs = await access.link.ask("jobs", patience=_PATIENCE, active=True, limit=_JOBS)
        saved = await access.read(access.store.state.saved)
        last = await access.read(access.store.state.last_saved, [job["id"] for job in jobs])
        asked = [access.link.ask("ranks", patience=_PATIENCE, job=job["id"]) for job in jobs]
        ranks = await asyncio.gather(*asked)
    except WeaverAway:
        return None
    return PlaneReading(status, states, jobs, ranks, saved, last)


Samples = Iterable[tuple[Sequence[object], float]]  # values of the labels, value


def _gauge(name: str, words: str, samples: Samples, labels: Sequence[str] = ()) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, words, labels=labels), samples)


def _counter(name: str, words: str, samples: Samples, labels: Sequence[str] = ()) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, words, labels=labels), samples)


def _filled(family: "GaugeMetricFamily | CounterMetricFamily", samples: Samples) -> "Metric":
    for values, number in samples:
        family.add_metric([*map(str, values)], number)
    return family


def _server_metrics(counts: Counts) -> "Iterator[Metric]":
    from prometheus_client.core import HistogramMetricFamily

    requests = sorted(counts.requests.items())
    labels = ("method", "path", "status")
    yield _counter("torchloom_http_requests", "Answered requests.", requests, labels)
    name, words = "torchloom_http_request_seconds", "Duration of requests in seconds."
    seconds = HistogramMetricFamily(name, words, labels=labels[:2])
    for route, durations in sorted(counts.durations.items()):
        seconds.add_metric(route, [*durations.cumulative()], durations.total)
    yield seconds


def _plane_metrics(plane: PlaneReading) -> "Iterator[Metric]":
    status = plane.status
    for name, words in _GAUGES.items():
        yield _gauge(f"torchloom_{name}", words, [((), status[name])])
    yield _counter("torchloom_records_stored", "Records stored.", [((), status["stored"])])
    dropped = [((why,), count) for why, count in sorted(status["dropped"].items())]
    yield _counter(
        "torchloom_dropped", "Records that were not stored, by reason.", dropped, ["reason"]
    )
    states = [((state,), plane.states.get(str(state), 0)) for state in JobState]
    yield _gauge("torchloom_jobs", "Jobs by state.", states, ["state"])
    yield from _job_metrics(plane.jobs, plane.ranks)
    yield from _checkpoint_metrics(plane)


def _job_metrics(jobs: Sequence[Row], ranks: Sequence[Sequence[Row]]) -> "Iterator[Metric]":
    steps = [(_labels(job), job["step"]) for job in jobs if job["step"] is not None]
    yield _gauge("torchloom_job_step", "The step that all ranks have reached.", steps, _JOB)
    seconds = [
        ((*_labels(job), rank["role"], rank["rank"]), rank["step_seconds"])
        for job, its in zip(jobs, ranks, strict=True)
        for rank in its[:_RANKS]
        if rank["step_seconds"] is not None
    ]
    name, words = "torchloom_rank_step_seconds", "Duration of the last step in seconds."
    yield _gauge(name, words, seconds, (*_JOB, "role", "rank"))


def _checkpoint_metrics(plane: PlaneReading) -> "Iterator[Metric]":
    phases = [((phase,), plane.saved.get(str(phase), 0)) for phase in CheckpointPhase]
    yield _gauge("torchloom_checkpoints", "Checkpoints by state.", phases, ["state"])
    last = plane.last_saved
    moments = [(_labels(job), last[job["id"]]) for job in plane.jobs if job["id"] in last]
    name = "torchloom_job_checkpoint_timestamp_seconds"
    yield _gauge(name, "When the last checkpoint was committed, in unix seconds.", moments, _JOB)


def _labels(job: Row) -> tuple[str, str]:
    return job["id"], job["name"]
