"""What is left to say of a job when it has ended: how far it came, how well, what went wrong."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchloom.history.compare import Goal, goal_of
from torchloom.specs.states import JobState
from torchloom.weaver.store import RecordStore, StateStore
from torchloom.weaver.store.rows import (
    CommandRow,
    EventRow,
    JobRow,
    PointRow,
    RankEventRow,
    RankProcessRow,
    RunRow,
)
from torchloom.weaver.store.series import curves
from torchloom.weaver.views import when

_DONE = ("applied", "committed")
SUMMARY = "summary"  # among a job's facts
SUMMARIZED = "summarized"  # among them, too: of which end it is the summary
GOALS = "goals"  # in a run's config: which way its program says that metrics are to go
_PAGE = 1000  # events that are read at a time
_BAD_EXIT = re.compile(r"exit_(?:code_(?!0(?:_|$))|signal_).*?(?:_rank_(?P<rank>\d+))?")
_FAULTS = ("hang", "fail", "node_lost", "notice", "kill")  # events of the weaver
_RANK_FAULTS = ("nan", "collective_error", "threadlet_failed")  # events of ranks
_WANTED = (*_RANK_FAULTS, "trained", "init", "goodbye")


def config_of(
    ranks: Iterable[RankProcessRow], commands: Iterable[CommandRow], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a run's values were before its first step.

    A rank says its knobs again when it has a new one, so a value that was changed is taken from
    what the first change replaced.
    """
    config = dict(given)
    for rank in sorted(ranks, key=lambda rank: rank.rank, reverse=True):
        config.update((knob["name"], knob["value"]) for knob in rank.knobs)
    for command in reversed(changes_of(commands)):
        config.update(before_of(command))
    return dict(sorted(config.items()))


def timeline_of(
    config: Mapping[str, Any], commands: Iterable[CommandRow], began: float | None
) -> list[dict[str, Any]]:
    """Return the config at its beginning, then each change of a knob at its step."""
    first = [_entry(0, began, config)] if config else []
    return first + [
        _entry(one.effective, one.ended_at or one.asked_at, after_of(one), one)
        for one in changes_of(commands)
    ]


def changes_of(commands: Iterable[CommandRow]) -> list[CommandRow]:
    """Return the changes of knobs that took place, in the order of their steps."""
    done = [one for one in commands if one.kind == "knob" and one.state in _DONE]
    return sorted(done, key=lambda one: (one.effective or 0, one.number))


def before_of(command: CommandRow) -> dict[str, Any]:
    """Return the values that a change replaced, as far as a rank has reported them."""
    reported = _reported_values(command, command.before)
    return {name: value for name, value in reported if value is not None}


def after_of(command: CommandRow) -> dict[str, Any]:
    """Return the values that a change set; where no rank has reported one, as requested."""
    requested = {name: wanted["value"] for name, wanted in command.payload.items()}
    reported = _reported_values(command, command.after)
    return {**requested, **{name: value for name, value in reported if value is not None}}


def _reported_values(command: CommandRow, values: Any) -> list[tuple[str, Any]]:
    """Return values by name; for a single knob a rank reports the bare value."""
    names = list(command.payload)
    if len(names) == 1:
        return [(names[0], values)]
    return [(name, values.get(name)) for name in names] if isinstance(values, dict) else []


def _entry(
    step: int | None,
    time: float | None,
    values: Mapping[str, Any],
    command: CommandRow | None = None,
) -> dict[str, Any]:
    return {
        "step": step,
        "time": when(time),
        "values": dict(values),
        "author": command.author if command else "",
        "reason": command.reason if command else "",
        "command": command.id if command else None,
    }


def summary_of(state: StateStore, records: RecordStore, job: JobRow) -> dict[str, Any]:
    """Return the summary of a job from its rows and records."""
    reported = list(_reported(records, job.id))
    run = state.one(RunRow, id=job.run_id)
    trained: Mapping[str, Any] = next(
        (one.facts for one in reversed(reported) if one.kind == "trained"), {}
    )
    return {
        "steps": job.step if job.step is not None else _steps(reported, trained),
        "samples": _whole(trained.get("samples")),
        "wall_seconds": _wall_seconds(job),
        "restarts": max(0, job.attempt - 1),
        "metrics": metrics_of(records, job.id, run.config.get(GOALS) if run else None),
        "faults": faults_of(job, _happened(state, job.id), reported),
    }


def summary_without_run(job: JobRow) -> dict[str, Any]:
    """Return the summary of a job that never had a rank."""
    return {
        "steps": job.step,
        "samples": None,
        "wall_seconds": None,
        "restarts": max(0, job.attempt - 1),
        "metrics": {},
        "faults": [],
    }


def is_due(job: JobRow) -> bool:
    """Tell whether a job has ended and has no summary of that end."""
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


def _metric(last: PointRow, extreme: curves.Best | None, goal: Goal | None) -> dict[str, Any]:
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
    """Return a number as JSON can hold it: one that is not finite as a text."""
    return value if math.isfinite(value) else str(value)


def faults_of(
    job: JobRow, happened: Iterable[EventRow], reported: Iterable[RankEventRow] = ()
) -> list[dict[str, Any]]:
    """Return what went wrong, by time.

    Of the ranks of one generation that end badly, the first is at fault; the others end with it.
    The ends of a cancelled job are no faults.
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
    for event in reported:
        if event.kind in _RANK_FAULTS:
            why = str(event.facts.get("error") or event.facts.get("words") or event.kind)
            found.append((event.time, _fault(event.time, event.kind, event.rank, why)))
    return [fault for _, fault in sorted(found, key=lambda one: one[0])]


def _membership(one: EventRow) -> int | None:
    """Return the generation or attempt that an exit belongs to; none for other events."""
    if one.kind not in ("rank_gone", "exit"):
        return None
    number = one.facts.get("generation", one.facts.get("attempt"))
    return number if isinstance(number, int) else None


def _bad_exit(one: EventRow) -> str:
    """Return how a rank ended badly; empty when it did not, or when another one did."""
    reason = one.reason
    if one.kind == "exit":
        code = one.facts.get("code", 0)
        reason = f"exit_code_{code}" if code >= 0 else f"exit_signal_{-code}"
    if not (found := _BAD_EXIT.fullmatch(reason)):
        return ""
    return "" if found["rank"] not in (None, str(one.rank)) else reason


def _fault(time: float, kind: str, rank: int, reason: str) -> dict[str, Any]:
    return {"time": when(time), "kind": kind, "rank": rank, "reason": reason}


def _steps(reported: Iterable[RankEventRow], trained: Mapping[str, Any]) -> int | None:
    """Return the last step of a job that ended without a weaver, as its ranks reported."""
    left = [one for one in reported if one.kind == "goodbye" and one.step >= 0]
    newest = max((one.generation for one in left), default=0)
    steps = [one.step for one in left if one.generation == newest]
    return min(steps) if steps else _whole(trained.get("steps"))


def _wall_seconds(job: JobRow) -> float | None:
    if job.started_at is None or job.ended_at is None:
        return None
    return round(max(0.0, job.ended_at - job.started_at), 3)


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _happened(state: StateStore, job: str) -> Iterator[EventRow]:
    after = 0
    while page := state.happened(job, after, _PAGE):
        yield from page
        after = page[-1].seq


def _reported(records: RecordStore, job: str) -> Iterator[RankEventRow]:
    after = 0
    while page := records.events(job, after, _PAGE):
        yield from (one for one in page if one.kind in _WANTED)
        after = page[-1].id


def project_of(records: RecordStore, job: str) -> str:
    """Return the project that a job's program has named itself a part of."""
    inits = (one.facts for one in _reported(records, job) if one.kind == "init")
    return next((str(facts["project"]) for facts in inits if facts.get("project")), "")


def facts_of(job: JobRow, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary as a job keeps it."""
    return {SUMMARY: dict(summary), SUMMARIZED: job.ended_at}
