"""What is left to say of a job when it has ended: how far it came, how well, what went wrong."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchloom.history.compare import Goal, goal_of
from torchloom.specs.job import JobState
from torchloom.weaver.shapes import when
from torchloom.weaver.store import RecordStore, StateStore, curves
from torchloom.weaver.store.rows import Happening, Job, Point, Run, Told

SUMMARY = "summary"  # among a job's facts
SUMMARIZED = "summarized"  # among them, too: of which end it is the summary
GOALS = "goals"  # in a run's config: which way its program says that metrics are to go
_PAGE = 1000  # events that are read at a time
_BAD_EXIT = re.compile(r"exit_(?:code_(?!0(?:_|$))|signal_).*?(?:_rank_(?P<rank>\d+))?")
_FAULTS = ("hang", "fail", "node_lost", "notice", "kill")  # told by the weaver
_TOLD_FAULTS = ("nan", "collective_error", "threadlet_failed")  # told by ranks
_WANTED = (*_TOLD_FAULTS, "trained", "init", "goodbye")


def summary_of(state: StateStore, records: RecordStore, job: Job) -> dict[str, Any]:
    """Return the summary of a job from what is stored of it; the same whenever it is asked for."""
    told = list(_told(records, job.id))
    run = state.one(Run, id=job.run_id)
    trained: Mapping[str, Any] = next(
        (one.facts for one in reversed(told) if one.kind == "trained"), {}
    )
    return {
        "steps": job.step if job.step is not None else _steps(told, trained),
        "samples": _whole(trained.get("samples")),
        "wall_seconds": _wall_seconds(job),
        "restarts": max(0, job.attempt - 1),
        "metrics": metrics_of(records, job.id, run.config.get(GOALS) if run else None),
        "faults": faults_of(job, _happened(state, job.id), told),
    }


def summary_without_run(job: Job) -> dict[str, Any]:
    """Return the summary of a job that never had a rank: nothing is stored of it to be read."""
    return {
        "steps": job.step,
        "samples": None,
        "wall_seconds": None,
        "restarts": max(0, job.attempt - 1),
        "metrics": {},
        "faults": [],
    }


def is_due(job: Job) -> bool:
    """Tell whether a job has come to an end of which there is no summary."""
    return JobState(job.state).is_final and job.facts.get(SUMMARIZED) != job.ended_at


def metrics_of(
    records: RecordStore, job: str, goals: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the last, least, greatest and best of each metric, by the lowest rank that has it."""
    extremes = {(one.name, one.rank, one.role): one for one in curves.best(records, job)}
    found: dict[str, dict[str, Any]] = {}
    for last in sorted(curves.last(records, job), key=lambda one: (one.name, one.rank, one.role)):
        if last.name not in found:
            extreme = extremes.get((last.name, last.rank, last.role))
            found[last.name] = _metric(last, extreme, goal_of(last.name, goals))
    return found


def _metric(last: Point, extreme: curves.Best | None, goal: Goal | None) -> dict[str, Any]:
    low, high = (extreme.low, extreme.high) if extreme is not None else (None, None)
    best = {"min": low, "max": high, None: None}[goal]
    return {
        "goal": goal,
        "last": plain(last.value),
        "min": plain(low.value) if low else None,
        "max": plain(high.value) if high else None,
        "best": plain(best.value) if best else None,
        "best_step": best.step if best else None,
    }


def plain(value: float) -> float | str:
    """Return a number as JSON can hold it: what is not finite is a word."""
    return value if math.isfinite(value) else str(value)


def faults_of(
    job: Job, happened: Iterable[Happening], told: Iterable[Told] = ()
) -> list[dict[str, Any]]:
    """Return what went wrong, by time.

    Of the ranks of one membership that end badly the first is at fault; the others fall with it.
    Those that end because somebody cancelled the job do as they are told.
    """
    found: list[tuple[float, dict[str, Any]]] = []
    fallen: set[int] = set()
    if job.state == JobState.CANCELLED:
        fallen.add(job.generation)
    for one in happened:
        membership = _membership(one)
        if one.kind in _FAULTS:
            found.append((one.time, _fault(one.time, one.kind, one.rank, one.reason)))
        elif membership is not None and membership not in fallen and (why := _bad_exit(one)):
            fallen.add(membership)
            found.append((one.time, _fault(one.time, "exit", one.rank, why)))
    for said in told:
        if said.kind in _TOLD_FAULTS:
            why = str(said.facts.get("error") or said.facts.get("words") or said.kind)
            found.append((said.time, _fault(said.time, said.kind, said.rank, why)))
    return [fault for _, fault in sorted(found, key=lambda one: one[0])]


def _membership(one: Happening) -> int | None:
    """Return which membership of ranks an exit belongs to; nothing for what is no exit."""
    if one.kind not in ("rank_gone", "exit"):
        return None
    number = one.facts.get("generation", one.facts.get("attempt"))
    return number if isinstance(number, int) else None


def _bad_exit(one: Happening) -> str:
    """Return how a rank ended badly; nothing when it did not, or when another one did."""
    reason = one.reason
    if one.kind == "exit":
        code = one.facts.get("code", 0)
        reason = f"exit_code_{code}" if code >= 0 else f"exit_signal_{-code}"
    if not (found := _BAD_EXIT.fullmatch(reason)):
        return ""
    return "" if found["rank"] not in (None, str(one.rank)) else reason


def _fault(time: float, kind: str, rank: int, reason: str) -> dict[str, Any]:
    return {"time": when(time), "kind": kind, "rank": rank, "reason": reason}


def _steps(told: Iterable[Told], trained: Mapping[str, Any]) -> int | None:
    """Return how far a job came that ended while no weaver was there, as its ranks said."""
    left = [one for one in told if one.kind == "goodbye" and one.step >= 0]
    newest = max((one.generation for one in left), default=0)
    steps = [one.step for one in left if one.generation == newest]
    return min(steps) if steps else _whole(trained.get("steps"))


def _wall_seconds(job: Job) -> float | None:
    if job.started_at is None or job.ended_at is None:
        return None
    return round(max(0.0, job.ended_at - job.started_at), 3)


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _happened(state: StateStore, job: str) -> Iterator[Happening]:
    after = 0
    while page := state.happened(job, after, _PAGE):
        yield from page
        after = page[-1].seq


def _told(records: RecordStore, job: str) -> Iterator[Told]:
    after = 0
    while page := records.events(job, after, _PAGE):
        yield from (one for one in page if one.kind in _WANTED)
        after = page[-1].id


def project_of(records: RecordStore, job: str) -> str:
    """Return the project that a job's program has named itself a part of."""
    inits = (one.facts for one in _told(records, job) if one.kind == "init")
    return next((str(facts["project"]) for facts in inits if facts.get("project")), "")


def facts_of(job: Job, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary as a job keeps it."""
    return {SUMMARY: dict(summary), SUMMARIZED: job.ended_at}
