"""Poll the plane for the screen in a thread, so that the screen never waits."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchloom.cli.monitor.answers import ACTIVE
from torchloom.cli.monitor.prompt import Ask
from torchloom.errors import LoomError

PERIOD = 1.0  # seconds between two polls
_PATIENCE = 5.0  # seconds for a reply
_JOBS, _EVENTS, _POINTS = 200, 200, 10_000  # most that is shown
_SLACK = 500  # steps that are requested again: some values arrive late
_REMEMBERED = 16  # ranks whose curves are cached

Fact = Mapping[str, Any]
SeriesKey = tuple[str, int, int, int]  # job, attempt, generation, epoch: each may restart the steps


@dataclass(frozen=True, slots=True)
class PollRequest:
    """What the screen shows; no job means the newest active one."""

    job: str = ""
    rank: int | None = None
    devices: bool = False


@dataclass(frozen=True, slots=True)
class ScreenSnapshot:
    """The state of the plane at one moment, as far as it is shown."""

    trouble: str = ""  # why this is not newer
    status: Fact = field(default_factory=dict)
    jobs: tuple[Fact, ...] = ()
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # ranks up, and in all
    job: str = ""
    ranks: tuple[Fact, ...] = ()
    series: tuple[Fact, ...] = ()
    events: tuple[Fact, ...] = ()
    devices: tuple[Fact, ...] | None = None  # none: they were not requested


class SnapshotReader:
    """Takes snapshots, one after the other."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._counts: dict[str, tuple[int, int]] = {}
        self._key: SeriesKey = ("", 0, 0, 0)
        self._known: dict[int, dict[str, dict[int, float]]] = {}  # curves of that key, by rank
        self._turn = 0
        self.last = ScreenSnapshot()

    def read(self, request: PollRequest) -> ScreenSnapshot:
        """Return a new snapshot; if the plane does not reply, the last one with the reason."""
        try:
            self.last = self._read(request)
        except LoomError as error:
            self.last = replace(self.last, trouble=str(error))
        return self.last

    def _read(self, request: PollRequest) -> ScreenSnapshot:
        status = self._ask("status", _PATIENCE)
        jobs = self._ask("jobs", _PATIENCE, limit=_JOBS)
        job = _chosen(jobs, request.job)
        ranks: tuple[Fact, ...] = ()
        series: tuple[Fact, ...] = ()
        if job:
            ranks = tuple(self._ranks(job))
            one = next(each for each in jobs if each["id"] == job)
            key = (job, one["attempt"], one["generation"], status["epoch"])
            series = tuple(self._series(key, ranks, request.rank))
        self._count_another(jobs, job)
        events = self._ask("events", _PATIENCE, job=job, limit=_EVENTS)["items"]
        devices = tuple(self._ask("devices", _PATIENCE)["devices"]) if request.devices else None
        return ScreenSnapshot(
            status=status,
            jobs=tuple(jobs),
            counts=dict(self._counts),
            job=job,
            ranks=ranks,
            series=series,
            events=tuple(events),
            devices=devices,
        )

    def _ranks(self, job: str) -> list[Fact]:
        ranks: list[Fact] = self._ask("ranks", _PATIENCE, job=job)
        up = sum(rank["state"] in ("up", "suspect") for rank in ranks)
        self._counts[job] = up, len(ranks)
        return ranks

    def _series(self, key: SeriesKey, ranks: tuple[Fact, ...], rank: int | None) -> list[Fact]:
        """Return the curves of a rank, and of the first rank those it does not log itself."""
        first = min((each["rank"] for each in ranks), default=0)
        chosen = first if rank is None else rank
        found = {**self._curves(key, first), **self._curves(key, chosen)}
        return [
            {"name": name, "rank": of, "points": [(step, 0.0, at[step]) for step in sorted(at)]}
            for name, (of, at) in found.items()
        ]

    def _curves(self, key: SeriesKey, rank: int) -> dict[str, tuple[int, dict[int, float]]]:
        """Return a rank's curves; of cached curves only the new points are requested."""
        if key != self._key or len(self._known) > _REMEMBERED:
            self._key, self._known = key, {}
        known = self._known.setdefault(rank, {})
        last = max((max(curve) for curve in known.values() if curve), default=0)
        facts = {"after": max(0, last - _SLACK)} if known else {}
        found = self._ask("metrics", _PATIENCE, job=key[0], rank=rank, limit=_POINTS, **facts)
        for each in found["series"]:
            curve = known.setdefault(each["name"], {})
            curve.update({point[0]: point[2] for point in each["points"]})
            for old in sorted(curve)[:-_POINTS]:
                del curve[old]
        return {name: (rank, curve) for name, curve in known.items()}

    def _count_another(self, jobs: list[Fact], job: str) -> None:
        """Count the ranks of one other active job, a different one each time."""
        others = [each["id"] for each in jobs if each["state"] in ACTIVE and each["id"] != job]
        if others:
            self._turn += 1
            self._ranks(others[self._turn % len(others)])


def _chosen(jobs: list[Fact], ref: str) -> str:
    """Return the id of the job to show: by id, name or prefix, else the newest active one."""
    ids = [job["id"] for job in jobs]
    if ref in ids:
        return ref
    named = [j["id"] for j in jobs if ref and (j["name"] == ref or j["id"].startswith(ref))]
    active = [job["id"] for job in jobs if job["state"] in ACTIVE]
    return next(iter([*named, *active, *ids]), "")


class Poll:
    """Takes a snapshot every second, and at once when the request changes."""

    def __init__(
        self, ask: Ask, publish: Callable[[ScreenSnapshot], object], request: PollRequest
    ) -> None:
        self._reader = SnapshotReader(ask)
        self._publish = publish
        self._request = request
        self._now = threading.Event()
        self._is_over = False
        # A daemon: a request without a reply must not delay the exit.
        self._thread = threading.Thread(target=self._run, name="monitor-poll", daemon=True)

    @property
    def request(self) -> PollRequest:
        return self._request

    def start(self) -> None:
        self._thread.start()

    def show(self, request: PollRequest) -> None:
        """Poll for this from now on."""
        if request != self._request:
            self._request = request
            self._now.set()

    def hurry(self) -> None:
        """Poll at once: something has changed."""
        self._now.set()

    def stop(self) -> None:
        self._is_over = True
        self._now.set()

    def _run(self) -> None:
        while not self._is_over:
            self._now.clear()
            found = self._snapshot()
            if not self._is_over:
                self._publish(found)
            self._now.wait(PERIOD)

    def _snapshot(self) -> ScreenSnapshot:
        try:
            return self._reader.read(self._request)
        except Exception as error:  # a bug in the thread must not look like an idle plane
            return replace(self._reader.last, trouble=f"this is a bug in torchloom: {error!r}")
