"""All that a report shows of a run: of the plane's database, read as it lies there, and of the
run's folder; of either alone where the other is missing."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom import settings
from torchloom.cli import live
from torchloom.cli.cmd_compare import lines_of
from torchloom.cli.export import folder
from torchloom.cli.export.hiding import hidden
from torchloom.cli.export.thinning import TOTAL, drawn
from torchloom.cli.live import Live
from torchloom.cli.shapes import job_shape
from torchloom.errors import NotFound
from torchloom.launch.records.record import RunRecord
from torchloom.runner.naming import find_job
from torchloom.server import living
from torchloom.server.topics import timeline
from torchloom.server.topics.detail import clocks_of
from torchloom.server.topics.rows import labels, progress_of, spark_of
from torchloom.weaver import views
from torchloom.weaver.runs import comparison, search
from torchloom.weaver.store import place_of
from torchloom.weaver.store.reader import JobFilter, PlaneReader, open_reading
from torchloom.weaver.store.rows import JobRow, RankProcessRow

_ENTRIES, _CHECKPOINTS, _RANKS = 1000, 1000, 512
_LONGEST = 1000  # letters of why something was done


@dataclass(frozen=True, slots=True)
class Found:
    """A run, and who knows of it: the plane that is up, its database, the run's own record."""

    id: str
    store: PlaneReader | None
    row: JobRow | None
    record: RunRecord | None
    live: Live | None


@contextlib.contextmanager
def opened() -> Iterator[PlaneReader | None]:
    """Give what this user's plane remembers, whether it is up or not; nothing where none was."""
    place = place_of(settings.loom_home(), settings.environment())
    if place.folder is not None and not (place.folder / "state.db").exists():
        yield None
        return
    store = open_reading(place)
    try:
        store.check()
        yield store
    finally:
        store.close()


def find(name: str, store: PlaneReader | None) -> Found:
    """Return the run that is meant; one whose folder is gone is known by its id or its name."""
    try:
        record = find_job(name)
    except NotFound:
        row = _stored(name, store)
        if row is None:
            raise
        return Found(row.id, store, row, None, live.job(row.id))
    row = store.state.one(JobRow, id=record.id) if store else None
    return Found(record.id, store, row, record, live.job(record.id))


def gathered(run: Found, last: int, buckets: int = TOTAL) -> dict[str, Any]:
    """Return what a report has of a run: so many lines of each log, so many buckets of curves."""
    series, notes = drawn(run.store.records, run.id, buckets) if run.store else ([], [])
    ranks = _ranks(run, series)
    job = {**_job(run), **_labelled(run), "first_error": _first_error(run)}
    if len(ranks) > _RANKS:
        notes.append(f"{len(ranks) - _RANKS} ranks are left out of the list.")
    return {
        "job": {**job, **progress_of(job["step"], job["total_steps"], None)},
        "clocks": clocks_of(job, ranks, _engine(run)),
        "ranks": ranks[:_RANKS],
        "series": series,
        "timeline": [_lean(entry) for entry in _timeline(run)],
        "checkpoints": _checkpoints(run),
        **_surroundings(run),
        "logs": folder.last_lines(run.record, last),
        "notes": notes,
    }


def differences(found: Sequence[Found]) -> list[list[str]]:
    """Return how several runs differ as `loom compare` shows it; nothing of one alone."""
    store = found[0].store
    if store is None or len(found) < 2 or any(run.row is None for run in found):
        return []
    told = hidden(comparison.compared(store, [run.id for run in found]))
    return [["", *(run.id for run in found)], *lines_of(told, whole=False)]


def _stored(name: str, store: PlaneReader | None) -> JobRow | None:
    if store is None:
        return None
    exact = store.state.one(JobRow, id=name)
    return exact or next(iter(store.state.page(JobFilter(name=name), None, 1)), None)


def _job(run: Found) -> dict[str, Any]:
    """Return the run as `loom show` has it; of one without a folder what the plane has."""
    if run.record is None:
        known = run.live or (living.shape(run.row) if run.row else {})
        names = [name for name in known if name not in ("ranks", "facts")]
        return {name: known[name] for name in names}
    shape = job_shape(run.record, live=run.live)
    step = shape["step"] if shape["step"] is not None else run.row and run.row.step
    return {**shape, "step": step}


def _labelled(run: Found) -> dict[str, Any]:
    """Return project, tags, the number of steps and the small curve of the loss."""
    known = labels(run.store, [run.id])[run.id] if run.store and run.row else {}
    name, spark = spark_of(run.store, run.id) if run.store else (None, [])
    return {
        "project": known.get("project", ""),
        "tags": known.get("tags", []),
        "total_steps": known.get("total_steps"),
        "throughput": None,
        "loss": spark[-1] if spark else None,
        "spark": spark,
        "spark_name": name,
        "queue_position": None,
    }


def _first_error(run: Found) -> dict[str, Any] | None:
    known = (run.live or {}).get("facts") or (run.row.facts if run.row else {})
    error = known.get("first_error")
    return error or (folder.error_of(run.record) if run.record else None)


def _ranks(run: Found, series: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ranks as the plane has them, with how each ended by the run's record.

    How far a rank came that is gone, its curves tell.
    """
    ranks: list[dict[str, Any]] = list((run.live or {}).get("ranks") or ())
    if not ranks and run.store:
        found = run.store.state.find(RankProcessRow, job=run.id)
        ranks = [views.rank_shape(rank, None) for rank in found]
    own = {(rank.role, rank.rank): rank for rank in run.record.ranks} if run.record else {}
    if not ranks and run.record:
        ranks = [folder.rank_shape(rank, run.record.host) for rank in own.values()]
    steps: dict[int, int] = {}
    for one in series:
        steps[one["rank"]] = max(one["steps"][-1], steps.get(one["rank"], 0))
    for rank in ranks:
        rank["step"] = steps.get(rank["rank"]) if rank["step"] is None else rank["step"]
        ended = own.get((rank["role"], rank["rank"]))
        rank["exit_code"] = ended.exit_code if ended else None
    return sorted(ranks, key=lambda rank: (rank["rank"], rank["role"]))


def _engine(run: Found) -> str:
    return run.record.truth().state.name if run.record else ""


def _timeline(run: Found) -> list[dict[str, Any]]:
    if run.store and run.row:
        return timeline.newest(run.store, run.id, _ENTRIES)
    return folder.happened(run.id)[-_ENTRIES:] if run.record else []


def _lean(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without what only a plane's own page shows; a file goes further than that."""
    return {**entry, "facts": {}, "reason": str(entry["reason"])[:_LONGEST]}


def _checkpoints(run: Found) -> list[dict[str, Any]]:
    if run.store is None:
        return []
    rows = run.store.state.checkpoints(run.id, None, _CHECKPOINTS)
    return [views.checkpoint_shape(row) for row in rows]


def _surroundings(run: Found) -> dict[str, Any]:
    """Return config, spec and what was recorded, without the values that may be secrets."""
    if run.store and run.row:
        known = search.shown(run.store, run.row.run_id or run.id)
        names = ("config", "spec", "recorded")
        found = {name: known[name] for name in names}
    else:
        recorded = folder.surroundings(run.id)
        found = {"config": {}, "spec": (recorded or {}).get("spec"), "recorded": recorded}
    if found["recorded"] is None and run.record:
        found["recorded"] = folder.surroundings(run.id)
    packages = (found["recorded"] or {}).get("packages")
    shown: dict[str, Any] = hidden(found)
    if packages:
        shown["recorded"]["packages"] = packages  # versions, whatever a package is called
    return shown
