"""Runs as a reader of the database sees them: a list to search, and one run whole."""

import contextlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from torchloom import accounts
from torchloom.errors import NotFound, UserError, shorten
from torchloom.history.compare import flat
from torchloom.launch.records.folder import RunFolder
from torchloom.specs.states import JobState
from torchloom.unix import open_file
from torchloom.weaver.jobs.registry import WORLD_SIZE
from torchloom.weaver.runs import provenance
from torchloom.weaver.runs.origin import spec_shown
from torchloom.weaver.runs.summary import GOALS, SUMMARY, config_of, metrics_of, timeline_of
from torchloom.weaver.store import RecordStore, StateStore
from torchloom.weaver.store.rows import (
    CommandRow,
    Fact,
    JobRow,
    RankProcessRow,
    RunRow,
    SubmissionRow,
)
from torchloom.weaver.store.series.tables import RecordsLost
from torchloom.weaver.views import when

CONFIG = "config"
_PLAIN = (
    *("state", "name", "owner", "project", "group", "commit", "branch"),
    *("step", "attempt", "world_size", "created_at", "duration"),
)
_METRICS = ("last", "best", "min", "max")
_LONGEST_TEXT = 200  # letters of a text by which runs are sorted
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_LONGEST = 500  # letters of a condition
_WORDS = re.compile(r"\s*(?:(last|best|min|max):)?([^<>=!]+?)\s*(<=|>=|!=|==|<|>|=)\s*(\S+)\s*")
R = TypeVar("R", RankProcessRow, CommandRow)
_AT_ONCE = 1000  # jobs that a database is asked for in one question
_LABELS = ("project", "group")
_LONGEST_PATCH = 1 << 26  # bytes of how a source differed
_FILES = {provenance.FILE: "record", provenance.PATCH: "diff"}


Brief = Mapping[str, Any]
Key = tuple[Any, ...]


class BadOrder(UserError):
    """Runs cannot be sorted by this."""

    code = "bad_order"

    def __init__(self, word: str) -> None:
        ways = f"{', '.join(_PLAIN)}; config:KEY; {', '.join(f'{one}:METRIC' for one in _METRICS)}"
        super().__init__(f"runs cannot be sorted by {shorten(word)!r}; known: {ways}")
        self.field = "sort"
        self.remedy = "name one of them, with - before it for the other way"


@dataclass(frozen=True, slots=True)
class SortOrder:
    """By what runs are sorted, and which way."""

    kind: str
    name: str
    is_down: bool

    @property
    def needs_config(self) -> bool:
        return self.kind == CONFIG

    def key(self, brief: Brief) -> Key:
        """Return what sorts a run; of equals the newest is first."""
        return self._key(self._value(brief), _seconds(brief["created_at"]), brief["job_id"])

    def cursor(self, brief: Brief) -> str:
        """Return the cursor after a run."""
        value = self._value(brief)
        return json.dumps([value, _seconds(brief["created_at"]), brief["job_id"]])

    def place(self, cursor: str) -> Key | None:
        """Return the key that a cursor stands behind; ValueError when it is no such place."""
        if not cursor:
            return None
        value, made, job = json.loads(cursor)
        return self._key(value, float(made), str(job))

    def _value(self, brief: Brief) -> Any:
        if self.kind == CONFIG:
            found = dict(flat(brief[CONFIG])).get(self.name)
        elif self.kind:
            found = brief["metrics"].get(self.name, {}).get(self.kind)
        elif self.name == "duration":
            found = (brief["summary"] or {}).get("wall_seconds")
        else:
            found = brief[self.name]
        return _plain(found)

    def _key(self, value: Any, made: float, job: str) -> Key:
        newest = (-made, *_backwards(job))
        if value is None:
            return (2, 0, newest)
        if isinstance(value, str):
            return (1, _backwards(value) if self.is_down else tuple(map(ord, value)), newest)
        return (0, -float(value) if self.is_down else float(value), newest)


def order_of(word: str) -> SortOrder:
    """Return what a word asks for."""
    kind, colon, name = word.removeprefix("-").partition(":")
    is_down = word.startswith("-")
    if colon and name and kind in (CONFIG, *_METRICS):
        return SortOrder(kind, name, is_down)
    if not colon and kind in _PLAIN:
        return SortOrder("", kind, is_down)
    raise BadOrder(word)


def _plain(value: Any) -> float | str | None:
    """Return a value as it is compared: a number, a text, or nothing."""
    if value is None or value == "" or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, int | float):
        return float(value)
    return (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_TEXT]


def _backwards(text: str) -> tuple[int, ...]:
    return (*(-ord(letter) for letter in text), 1)  # a longer text comes before its beginning


def _seconds(time: str | None) -> float:
    return datetime.fromisoformat(time).timestamp() if time else 0.0


class BadCondition(UserError):
    """A condition on a metric that cannot be understood."""

    code = "bad_condition"

    def __init__(self, words: str) -> None:
        super().__init__(
            f"{shorten(words)!r} is not a condition on a metric;"
            " write loss<0.3 or best:accuracy>=0.9"
        )


@dataclass(frozen=True, slots=True)
class SearchCondition:
    """A metric, which of its values, and what it is compared with."""

    name: str
    which: str
    holds: Callable[[Any, Any], bool]
    value: float

    def fits(self, metrics: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether a run's metrics are so; one that it does not have is not."""
        found = metrics.get(self.name, {}).get(self.which)
        return found is not None and self.holds(float(found), self.value)


def condition(words: str) -> SearchCondition:
    """Return what these words mean."""
    found = _WORDS.fullmatch(words) if len(words) <= _LONGEST else None
    if found is None:
        raise BadCondition(words)
    which, name, sign, number = found.groups()
    try:
        return SearchCondition(name, which or "last", _OPERATORS[sign], float(number))
    except ValueError:
        raise BadCondition(words) from None


Place = tuple[float, str]  # when a job was made, and its id


class Reads(Protocol):
    """Both databases of a plane."""

    @property
    def state(self) -> StateStore: ...

    @property
    def records(self) -> RecordStore: ...


class BadRunCursor(UserError):
    """The cursor is not the end of a page."""

    code = "bad_cursor"


@dataclass(frozen=True, slots=True)
class RunSearch:
    """Which runs are wanted; what is empty is not asked. All that is asked must hold."""

    text: str = ""
    states: tuple[str, ...] = ()
    owner: str = ""
    project: str = ""
    group: str = ""
    tag: str = ""
    commit: str = ""
    where: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    sort: str = ""  # such as -last:loss; without it the newest come first


def listed(
    store: Reads, search: RunSearch | None = None, limit: int = 100, cursor: str = ""
) -> dict[str, Any]:
    """Return a page of runs with what each was given, and where the next begins."""
    asked, most = search or RunSearch(), max(1, limit)
    if asked.sort:
        return _sorted(store, asked, most, cursor)
    items: list[dict[str, Any]] = []
    last: Place | None = None
    for job, brief in _wanted(store, asked, _place(cursor)):
        if last is not None and len(items) == most:
            return {"items": _given(store, items), "next": f"{last[0]!r}:{last[1]}"}
        items.append(brief)
        last = (job.created_at, job.id)
    return {"items": _given(store, items), "next": None}


def _sorted(store: Reads, asked: RunSearch, most: int, cursor: str) -> dict[str, Any]:
    order = order_of(asked.sort)
    try:
        behind = order.place(cursor)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise BadRunCursor(f"{shorten(cursor)!r} is not a cursor of this list") from None
    found = [brief for _, brief in _wanted(store, asked, None)]
    if order.needs_config:
        found = _given(store, found)
    keys = [(order.key(brief), brief) for brief in found]
    rest = sorted(
        (one for one in keys if behind is None or one[0] > behind), key=lambda one: one[0]
    )
    items = [brief for _, brief in rest[:most]]
    following = order.cursor(items[-1]) if len(rest) > most else None
    return {"items": _given(store, items), "next": following}


def _wanted(
    store: Reads, asked: RunSearch, before: Place | None
) -> Iterator[tuple[JobRow, dict[str, Any]]]:
    conditions = [condition(words) for words in asked.where]
    for job, run in _newest(store.state, before):
        brief = brief_of(store, job, run)
        if _is_wanted(job, brief, asked, conditions):
            yield job, brief


def _given(store: Reads, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return runs with their config, those that have one already as they are."""
    jobs = [item["job_id"] for item in items if CONFIG not in item]
    found = configs(store.state, jobs)
    return [item if CONFIG in item else {**item, CONFIG: found[item["job_id"]]} for item in items]


def configs(state: StateStore, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what runs were given, read for many at once."""
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(jobs), _AT_ONCE):
        some = list(jobs[start : start + _AT_ONCE])
        ranks, commands = (
            _by_job(state.find(RankProcessRow, job=some)),
            _by_job(state.find(CommandRow, job=some)),
        )
        specs = {row.job: row.spec for row in state.find(SubmissionRow, job=some)}
        for job in some:
            given = specs.get(job, {}).get("hyperparameters") or {}
            found[job] = config_of(ranks.get(job, ()), commands.get(job, ()), given)
    return found


def _by_job(rows: Iterable[R]) -> dict[str, list[R]]:
    found: dict[str, list[R]] = {}
    for row in rows:
        found.setdefault(row.job, []).append(row)
    return found


def shown(store: Reads, run_id: str) -> dict[str, Any]:
    """Return all that is known of one run."""
    is_name = run_id.isprintable()  # others no database need be asked for
    run = store.state.one(RunRow, id=run_id) if is_name else None
    job = store.state.one(JobRow, id=run.job if run else run_id) if is_name else None
    if job is None:
        raise NotFound("run", run_id, [one.id for one in store.state.find(RunRow)])
    fact = store.state.one(Fact, name=provenance.FACT + job.run_id)
    record = fact.value if fact else None
    submitted = store.state.one(SubmissionRow, job=job.id)
    spec = spec_shown(submitted.spec) if submitted else (record or {}).get("spec")
    ranks = store.state.find(RankProcessRow, job=job.id)
    commands = store.state.find(CommandRow, job=job.id)
    config = config_of(ranks, commands, (spec or {}).get("hyperparameters") or {})
    return {
        **brief_of(store, job, _labelled(run, spec)),
        "config": config,
        "timeline": timeline_of(config, commands, job.started_at),
        "spec": spec,
        "recorded": record,
        "artifacts": accounts.within(job.account, _artifacts, job),
        "checkpoints": [],
    }


def diff(run_id: str) -> str | None:
    """Return how a run's source differed from its commit, as it was recorded."""
    if not provenance.is_name(run_id):
        return None
    path = RunFolder.named(run_id).path / provenance.PATCH
    with contextlib.suppress(OSError), open_file(path) as file:
        return file.read(_LONGEST_PATCH).decode(errors="replace")
    return None


def _metrics(store: Reads, job: str, goals: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run's metrics; none where records cannot be read."""
    try:
        return metrics_of(store.records, job, goals)
    except RecordsLost:
        return {}


def brief_of(store: Reads, job: JobRow, run: RunRow | None) -> dict[str, Any]:
    """Return what a list shows of a run."""
    config: Mapping[str, Any] = run.config if run else {}
    is_over = JobState(job.state).is_final
    summary = job.facts.get(SUMMARY) if is_over else None
    metrics = summary["metrics"] if summary else _metrics(store, job.id, config.get(GOALS))
    return {
        "run_id": job.run_id,
        "job_id": job.id,
        "name": job.name,
        "owner": job.owner,
        "state": job.state,
        "reason": job.reason,
        **{name: config.get(name) or "" for name in _LABELS},
        "tags": list(config.get("tags") or ()),
        "notes": config.get("notes") or "",
        "commit": config.get("commit"),
        "branch": config.get("branch"),
        "dirty": config.get("dirty"),
        "created_at": when(job.created_at),
        "started_at": when(job.started_at),
        "ended_at": when(job.ended_at),
        "step": job.step,
        "world_size": job.facts.get(WORLD_SIZE),
        "attempt": job.attempt,
        "metrics": metrics,
        "summary": summary,
    }


def _newest(state: StateStore, before: Place | None) -> Iterator[tuple[JobRow, RunRow | None]]:
    """Yield every run, newest first, from a place on."""
    runs = {run.id: run for run in state.find(RunRow)}
    jobs = sorted(state.find(JobRow), key=lambda job: (job.created_at, job.id), reverse=True)
    waiting = [job.id for job in jobs if job.state == JobState.QUEUED]
    specs = {row.job: row.spec for row in state.find(SubmissionRow, job=waiting)} if waiting else {}
    for job in jobs:
        if before is None or (job.created_at, job.id) < before:
            yield job, _labelled(runs.get(job.run_id), specs.get(job.id))


def _labelled(run: RunRow | None, spec: Mapping[str, Any] | None) -> RunRow | None:
    """Return a run with the labels of its spec, which is all that is known before it begins."""
    if run is None or spec is None:
        return run
    labels = {name: spec[name] for name in (*_LABELS, "tags") if spec.get(name)}
    return replace(run, config={**labels, **run.config})


def _place(cursor: str) -> Place | None:
    made, _, job = cursor.partition(":")
    if not cursor:
        return None
    try:
        return float(made), job
    except ValueError:
        raise BadRunCursor(f"{shorten(cursor)!r} is not a cursor of this list") from None


def _is_wanted(
    job: JobRow, brief: Mapping[str, Any], asked: RunSearch, conditions: Sequence[SearchCondition]
) -> bool:
    made = job.created_at
    return (
        (not asked.states or job.state in asked.states)
        and all(getattr(asked, name) in ("", brief[name]) for name in ("owner", *_LABELS))
        and (not asked.tag or asked.tag in brief["tags"])
        and (brief["commit"] or "").startswith(asked.commit)
        and (asked.since is None or made >= asked.since)
        and (asked.until is None or made < asked.until)
        and _has(brief, asked.text)
        and all(one.fits(brief["metrics"]) for one in conditions)
    )


def _has(brief: Mapping[str, Any], text: str) -> bool:
    """Tell whether every word of a text is in something that a run is known by."""
    names = ("run_id", "name", "owner", "project", "group", "commit", "branch", "state", "reason")
    words = [*(str(brief[name] or "") for name in names), *brief["tags"], brief["notes"]]
    known = " ".join(words).lower()
    return all(word in known for word in text.lower().split())


def _artifacts(job: JobRow) -> list[dict[str, Any]]:
    """Return the files of a run's folder that tell what it was."""
    found = []
    for name, kind in _FILES.items():
        with contextlib.suppress(OSError, ValueError):
            size = (RunFolder.named(job.id).path / name).lstat().st_size
            found.append({"kind": kind, "name": name, "bytes": size})
    return found
