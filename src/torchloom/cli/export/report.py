"""The data of a report: from the plane's database, read directly, and from the run's folder;
from one of them if the other is missing.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom import settings
from torchloom.cli.commands.cmd_compare import lines_of
from torchloom.cli.commands.cmd_show import first_error
from torchloom.cli.jobs.job_shapes import job_shape
from torchloom.errors import NotFound
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RankRecord, RunRecord
from torchloom.runner.job_lookup import Live, find_job, live_job
from torchloom.server import job_records
from torchloom.server.logs.lines import OutputLine, merged, outputs_of, tail_of
from torchloom.server.stream.payloads import StreamPayload, columns
from torchloom.server.stream.topics import timeline
from torchloom.server.stream.topics.jobs import clocks_of, labels, progress_of, spark_of
from torchloom.server.stream.topics.timeline import entry_of
from torchloom.specs.api import AppState
from torchloom.weaver import views
from torchloom.weaver.runs import comparison, origin, provenance, search
from torchloom.weaver.store import RecordStore, place_of
from torchloom.weaver.store.reader import JobFilter, PlaneReader, open_reading
from torchloom.weaver.store.rows import JobRow, RankProcessRow
from torchloom.weaver.store.series import curves
from torchloom.weaver.store.series.curves import Curve, SeriesKey

MOST = 4000  # buckets of one curve: more than a screen is wide
TOTAL = 36_000  # buckets of a file, of a hundred bytes at most each
LEAST = 20  # least buckets of one curve; beyond that, curves are left out
_FEW = 200  # buckets: below this, only the lowest rank of each metric is kept
HIDDEN = "***"
_WORDS = r"token|secret|passw(or)?d|api[-_]?key|credentials?|access[-_]?key|private[-_]?key"
_SECRET = re.compile(rf"(?i)(^|[^a-z])({_WORDS})([^a-z]|$)")  # a tokenizer is no token
_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@")
_ROOM = 600_000  # characters of all log lines together
_WIDEST = 4000  # characters of one line
_ENTRIES, _CHECKPOINTS, _RANKS = 1000, 1000, 512
_LONGEST = 1000  # characters of a reason


def drawn_curves(
    records: RecordStore, job: str, total: int = TOTAL
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a job's curves with at most `total` buckets together, and notes on what is left out.

    Half of the buckets are for the curves of the lowest ranks, which are shown first.
    """
    every = curves.series(records, job)
    first = _lowest(every)
    others = [one for one in every if one not in first]
    if len(every) * _FEW <= total:
        room = total // 2 if others else total
        return [*_of(records, job, first, room), *_of(records, job, others, total - room)], []
    notes = []
    if others:
        notes.append("To limit the file size, each metric has only the curve of its lowest rank.")
    kept = first[: total // LEAST]
    if len(kept) < len(first):
        notes.append(f"To limit the file size, {len(first) - len(kept)} metrics are left out.")
    return _of(records, job, kept, total), notes


def _lowest(every: Sequence[SeriesKey]) -> list[SeriesKey]:
    """Return of each metric the series of the lowest rank, by name."""
    lowest: dict[str, SeriesKey] = {}
    for one in sorted(every, key=lambda one: (one.name, one.rank, one.role)):
        lowest.setdefault(one.name, one)
    return list(lowest.values())


def _of(
    records: RecordStore, job: str, wanted: Sequence[SeriesKey], room: int
) -> list[dict[str, Any]]:
    """Return the curves of some series, with `room` buckets together."""
    if not wanted:
        return []
    share = max(LEAST, min(MOST, room // len(wanted)))
    names, ranks = {one.name for one in wanted}, {one.rank for one in wanted}
    found = curves.curves(records, job, names, ranks, buckets=share, replaced=True)
    if any(one.replaced for one in found) and share > LEAST:  # what they replaced takes half
        share = max(LEAST, share // 2)
        found = curves.curves(records, job, names, ranks, buckets=share, replaced=True)
    kept = {(one.name, one.rank, one.role) for one in wanted}
    return [_shape(one) for one in found if (one.name, one.rank, one.role) in kept]


def _shape(curve: Curve) -> dict[str, Any]:
    """Return a curve as columns; without buckets if each has a single point."""
    whole = _rounded(columns(curve))
    older = {"has_replaced": curve.has_replaced, "replaced": list(map(_rounded, whole["replaced"]))}
    if any(count != 1 for count in curve.count):
        return {**whole, **older}
    named = {name: whole[name] for name in ("name", "rank", "role", "steps", "times")}
    return {**named, "values": curve.last, **(older if curve.has_replaced else {})}


def _rounded(buckets: dict[str, Any]) -> dict[str, Any]:
    return {**buckets, "times": [round(time, 3) for time in buckets["times"]]}


def hidden(value: Any, name: str = "") -> Any:
    """Return data in which values with secret names, and passwords in URLs, are hidden."""
    if isinstance(value, Mapping):
        return {key: hidden(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(one, name) for one in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if _SECRET.search(name) else _IN_URL.sub(rf"\1:{HIDDEN}@", value)


def surroundings(job: str) -> dict[str, Any] | None:
    """Return the provenance recorded at the start of a run, else its command line and variables."""
    folder = RunFolder.named(job)
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder.path / provenance.FILE).read_bytes())
        return found
    known = origin.of_folder(folder)
    if known is None:
        return None
    words, names = origin.without_secrets(known.argv), origin.variables(known.env)
    return {"cwd": known.cwd, "argv": words, "env": names}


def recorded_timeline(job: str) -> list[dict[str, Any]]:
    """Return the events of the run's folder as timeline entries."""
    entries = (_entry(number, event) for number, event in enumerate(RunFolder.named(job).events()))
    return [entry for entry in entries if entry is not None]


def _entry(number: int, event: Mapping[str, Any]) -> dict[str, Any] | None:
    facts = {name: value for name, value in event.items() if name not in ("time", "event")}
    rank, reason = facts.get("rank"), str(facts.get("reason") or "")
    body = {"seq": number, "time": event["time"], "kind": event["event"], "facts": facts}
    return entry_of(
        StreamPayload("", "event", -1, 0.0, {**body, "rank": rank, "reason": reason}, {})
    )


def recorded_error(record: RunRecord) -> dict[str, Any] | None:
    """Return the first error of a run, if it has one."""
    if record.first_error:
        return dict(record.first_error)
    words = first_error(record)
    return {"message": words} if words else None


def recorded_rank(rank: RankRecord, host: str) -> dict[str, Any]:
    """Return a rank of a record in the format of the plane."""
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "role": rank.role,
        "replica": str(rank.replica),
        "node": rank.process.host if rank.process else host,
        "pid": rank.process.pid if rank.process else 0,
        "state": "up" if rank.state is AppState.RUNNING else rank.state.name.lower(),
        "reason": "",
        "step": None,
        "phase": None,
        "device_uuids": [],
        "generation": rank.generation,
    }


def last_lines(record: RunRecord | None, count: int) -> list[dict[str, Any]]:
    """Return the last log lines of each rank, limited in total size."""
    if record is None or count == 0:
        return []
    share = _ROOM // max(1, len(record.ranks))
    return [_tail(record, rank, count, share) for rank in record.ranks]


def _tail(record: RunRecord, rank: RankRecord, count: int, room: int) -> dict[str, Any]:
    own = [one for one in outputs_of(record, [rank.rank]) if one.role == rank.role]
    starts = {one.key: tail_of(one, count) for one in own}
    lines = list(merged(own, starts, record.truth().is_over()))
    kept = _fitting(lines[-count:], room)
    older = len(kept) < len(lines) or any(starts.values())
    return {"rank": rank.rank, "role": rank.role, "older": older, "items": kept}


def _fitting(lines: list[OutputLine], room: int) -> list[dict[str, Any]]:
    """Return the newest lines that fit into `room` characters, oldest first."""
    kept: list[dict[str, Any]] = []
    for line in reversed(lines):
        text = line.text if len(line.text) <= _WIDEST else f"{line.text[:_WIDEST]} ..."
        room -= len(text)
        if room < 0:
            break
        key = f"{line.output.key}:{line.start}"
        kept.append({"key": key, **line.shape(), "message": text})
    return kept[::-1]


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run and its sources: the running plane, its database, the run's record."""

    id: str
    store: PlaneReader | None
    row: JobRow | None
    record: RunRecord | None
    live: Live | None


@contextlib.contextmanager
def open_store() -> Iterator[PlaneReader | None]:
    """Yield a reader of this user's plane database, running or not; None without a database."""
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


def find_run(name: str, store: PlaneReader | None) -> ExportedRun:
    """Return a run; a run without a folder is found in the database by its id or name."""
    try:
        record = find_job(name)
    except NotFound:
        row = _stored(name, store)
        if row is None:
            raise
        return ExportedRun(row.id, store, row, None, live_job(row.id))
    row = store.state.one(JobRow, id=record.id) if store else None
    return ExportedRun(record.id, store, row, record, live_job(record.id))


def run_report(run: ExportedRun, last: int, buckets: int = TOTAL) -> dict[str, Any]:
    """Return the report of a run, with `last` lines of each log and `buckets` of curves."""
    series, notes = drawn_curves(run.store.records, run.id, buckets) if run.store else ([], [])
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
        "logs": last_lines(run.record, last),
        "notes": notes,
    }


def differences(found: Sequence[ExportedRun]) -> list[list[str]]:
    """Return how several runs differ, as in `loom compare`; empty for a single run."""
    store = found[0].store
    if store is None or len(found) < 2 or any(run.row is None for run in found):
        return []
    compared = hidden(comparison.compared(store, [run.id for run in found]))
    return [["", *(run.id for run in found)], *lines_of(compared, whole=False)]


def _stored(name: str, store: PlaneReader | None) -> JobRow | None:
    if store is None:
        return None
    exact = store.state.one(JobRow, id=name)
    return exact or next(iter(store.state.page(JobFilter(name=name), None, 1)), None)


def _job(run: ExportedRun) -> dict[str, Any]:
    """Return the run as in `loom show`; without a folder, as the plane has it."""
    if run.record is None:
        known = run.live or (job_records.job_shape(run.row) if run.row else {})
        names = [name for name in known if name not in ("ranks", "facts")]
        return {name: known[name] for name in names}
    shape = job_shape(run.record, live=run.live)
    step = shape["step"] if shape["step"] is not None else run.row and run.row.step
    return {**shape, "step": step}


def _labelled(run: ExportedRun) -> dict[str, Any]:
    """Return project, tags, number of steps and the sparkline of the loss."""
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


def _first_error(run: ExportedRun) -> dict[str, Any] | None:
    known = (run.live or {}).get("facts") or (run.row.facts if run.row else {})
    error = known.get("first_error")
    return error or (recorded_error(run.record) if run.record else None)


def _ranks(run: ExportedRun, series: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ranks as the plane has them, with exit codes from the run's record.

    The last step of a rank that has ended comes from its curves.
    """
    ranks: list[dict[str, Any]] = list((run.live or {}).get("ranks") or ())
    if not ranks and run.store:
        found = run.store.state.find(RankProcessRow, job=run.id)
        ranks = [views.rank_shape(rank, None) for rank in found]
    own = {(rank.role, rank.rank): rank for rank in run.record.ranks} if run.record else {}
    if not ranks and run.record:
        ranks = [recorded_rank(rank, run.record.host) for rank in own.values()]
    steps: dict[int, int] = {}
    for one in series:
        steps[one["rank"]] = max(one["steps"][-1], steps.get(one["rank"], 0))
    for rank in ranks:
        rank["step"] = steps.get(rank["rank"]) if rank["step"] is None else rank["step"]
        ended = own.get((rank["role"], rank["rank"]))
        rank["exit_code"] = ended.exit_code if ended else None
    return sorted(ranks, key=lambda rank: (rank["rank"], rank["role"]))


def _engine(run: ExportedRun) -> str:
    return run.record.truth().state.name if run.record else ""


def _timeline(run: ExportedRun) -> list[dict[str, Any]]:
    if run.store and run.row:
        return timeline.newest_of_job(run.store, run.id, _ENTRIES)
    return recorded_timeline(run.id)[-_ENTRIES:] if run.record else []


def _lean(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without its facts, which must not leave the plane in a file."""
    return {**entry, "facts": {}, "reason": str(entry["reason"])[:_LONGEST]}


def _checkpoints(run: ExportedRun) -> list[dict[str, Any]]:
    if run.store is None:
        return []
    rows = run.store.state.checkpoints(run.id, None, _CHECKPOINTS)
    return [views.checkpoint_shape(row) for row in rows]


def _surroundings(run: ExportedRun) -> dict[str, Any]:
    """Return config, spec and provenance, without values that may be secrets."""
    if run.store and run.row:
        known = search.shown(run.store, run.row.run_id or run.id)
        names = ("config", "spec", "recorded")
        found = {name: known[name] for name in names}
    else:
        recorded = surroundings(run.id)
        found = {"config": {}, "spec": (recorded or {}).get("spec"), "recorded": recorded}
    if found["recorded"] is None and run.record:
        found["recorded"] = surroundings(run.id)
    packages = (found["recorded"] or {}).get("packages")
    shown: dict[str, Any] = hidden(found)
    if packages:
        shown["recorded"]["packages"] = packages  # versions are not secret, whatever the name
    return shown
