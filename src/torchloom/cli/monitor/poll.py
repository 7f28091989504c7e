"""What the screen shows, asked for in a thread of its own: the screen itself never waits."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchloom.cli.monitor.answers import ACTIVE
from torchloom.cli.monitor.prompt import Ask
from torchloom.errors import LoomError

PERIOD = 1.0  # seconds between two looks
_PATIENCE = 5.0  # seconds for an answer
_JOBS, _EVENTS, _POINTS = 200, 200, 10_000  # how much of it is shown
_SLACK = 500  # steps that are asked for again: some numbers arrive later than others
_REMEMBERED = 16  # ranks whose curves are kept

Fact = Mapping[str, Any]
Life = tuple[str, int, int, int]  # job, attempt, generation, epoch: steps may begin anew with each


@dataclass(frozen=True, slots=True)
class PollRequest:
    """What somebody looks at; no job means the newest that is active."""

    job: str = ""
    rank: int | None = None
    devices: bool = False


@dataclass(frozen=True, slots=True)
class ScreenSnapshot:
    """The plane at one moment, as far as somebody looks at it."""

    trouble: str = ""  # why there is nothing newer
    status: Fact = field(default_factory=dict)
    jobs: tuple[Fact, ...] = ()
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # ranks up, and in all
    job: str = ""
    ranks: tuple[Fact, ...] = ()
    series: tuple[Fact, ...] = ()
    events: tuple[Fact, ...] = ()
    devices: tuple[Fact, ...] = ()


class Looker:
    """Takes snapshots, one after the other."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._counts: dict[str, tuple[int, int]] = {}
        self._life: Life = ("", 0, 0, 0)
        self._known: dict[int, dict[str, dict[int, float]]] = {}  # of that life, by rank
        self._turn = 0
        self.last = ScreenSnapshot()

    def look(self, wish: PollRequest) -> ScreenSnapshot:
        """Return how things are; when the plane does not answer, how they were, and why."""
        try:
            self.last = self._look(wish)
        except LoomError as error:
            self.last = replace(self.last, trouble=str(error))
        return self.last

    def _look(self, wish: PollRequest) -> ScreenSnapshot:
        status = self._ask("status", _PATIENCE)
        jobs = self._ask("jobs", _PATIENCE, limit=_JOBS)
        job = _chosen(jobs, wish.job)
        ranks: tuple[Fact, ...] = ()
        series: tuple[Fact, ...] = ()
        if job:
            ranks = tuple(self._ranks(job))
            one = next(each for each in jobs if each["id"] == job)
            life = (job, one["attempt"], one["generation"], status["epoch"])
            series = tuple(self._series(life, ranks, wish.rank))
        self._count_another(jobs, job)
        events = self._ask("events", _PATIENCE, job=job, limit=_EVENTS)["items"]
        devices = self._ask("devices", _PATIENCE)["devices"] if wish.devices else ()
        return ScreenSnapshot(
            status=status,
            jobs=tuple(jobs),
            counts=dict(self._counts),
            job=job,
            ranks=ranks,
            series=series,
            events=tuple(events),
            devices=tuple(devices),
        )

    def _ranks(self, job: str) -> list[Fact]:
        ranks: list[Fact] = self._ask("ranks", _PATIENCE, job=job)
        up = sum(rank["state"] in ("up", "suspect") for rank in ranks)
        self._counts[job] = up, len(ranks)
        return ranks

    def _series(self, life: Life, ranks: tuple[Fact, ...], rank: int | None) -> list[Fact]:
        """Return the curves of a rank; what it does not log itself, of the first."""
        first = min((each["rank"] for each in ranks), default=0)
        chosen = first if rank is None else rank
        found = {**self._curves(life, first), **self._curves(life, chosen)}
        return [
            {"name": name, "rank": of, "points": [(step, 0.0, at[step]) for step in sorted(at)]}
            for name, (of, at) in found.items()
        ]

    def _curves(self, life: Life, rank: int) -> dict[str, tuple[int, dict[int, float]]]:
        """Return a rank's curves; once they are known, only their ends are asked for."""
        if life != self._life or len(self._known) > _REMEMBERED:
            self._life, self._known = life, {}
        known = self._known.setdefault(rank, {})
        last = max((max(curve) for curve in known.values() if curve), default=0)
        facts = {"after": max(0, last - _SLACK)} if known else {}
        found = self._ask("metrics", _PATIENCE, job=life[0], rank=rank, limit=_POINTS, **facts)
        for each in found["series"]:
            curve = known.setdefault(each["name"], {})
            curve.update({point[0]: point[2] for point in each["points"]})
            for old in sorted(curve)[:-_POINTS]:
                del curve[old]
        return {name: (rank, curve) for name, curve in known.items()}

    def _count_another(self, jobs: list[Fact], job: str) -> None:
        """Count the ranks of one more active job, each in its turn."""
        others = [each["id"] for each in jobs if each["state"] in ACTIVE and each["id"] != job]
        if others:
            self._turn += 1
            self._ranks(others[self._turn % len(others)])


def _chosen(jobs: list[Fact], wish: str) -> str:
    """Return the job that is looked at."""
    ids = [job["id"] for job in jobs]
    if wish in ids:
        return wish
    named = [j["id"] for j in jobs if wish and (j["name"] == wish or j["id"].startswith(wish))]
    active = [job["id"] for job in jobs if job["state"] in ACTIVE]
    return next(iter([*named, *active, *ids]), "")


class Poll:
    """Looks again and again, and at once when somebody looks at something else."""

    def __init__(
        self, ask: Ask, tell: Callable[[ScreenSnapshot], object], wish: PollRequest
    ) -> None:
        self._looker = Looker(ask)
        self._tell = tell
        self._wish = wish
        self._now = threading.Event()
        self._is_over = False
        # A question that is never answered must not keep anybody from leaving.
        self._thread = threading.Thread(target=self._run, name="monitor-poll", daemon=True)

    @property
    def wish(self) -> PollRequest:
        return self._wish

    def start(self) -> None:
        self._thread.start()

    def look_at(self, wish: PollRequest) -> None:
        """Look at this from now on."""
        if wish != self._wish:
            self._wish = wish
            self._now.set()

    def hurry(self) -> None:
        """Look at once: something has changed."""
        self._now.set()

    def stop(self) -> None:
        self._is_over = True
        self._now.set()

    def _run(self) -> None:
        while not self._is_over:
            self._now.clear()
            found = self._look()
            if not self._is_over:
                self._tell(found)
            self._now.wait(PERIOD)

    def _look(self) -> ScreenSnapshot:
        try:
            return self._looker.look(self._wish)
        except (
            Exception
        ) as error:  # a thread's bug must not look like a plane where nothing happens
            return replace(self._looker.last, trouble=f"this is a bug in torchloom: {error!r}")
