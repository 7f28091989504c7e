"""Watch what metrics do after a change, and undo it where its guard trips.

A guard is a row beside its command: a weaver that begins reads both and watches on.
"""

import math
from dataclasses import dataclass, replace

from torchloom.messages.plane import Metrics, Value
from torchloom.rules.control import undo as rules
from torchloom.rules.control.command import Command, CommandEntry, CommandKind, Status
from torchloom.rules.control.undo import NoUndo, undo
from torchloom.weaver.commands.driver import ID, CommandDriver, wrapped
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.events import Journal, MetricsReceived
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import JobRegistry, is_over
from torchloom.weaver.store import PlaneStore
from torchloom.weaver.store.rows import GuardRow, PointRow
from torchloom.weaver.store.series.tables import RecordsLost

AUTHOR = "guard"
_OPEN = ("watching", "tripped")
_NEVER = 1 << 62  # the step of a change that is not decided yet


@dataclass(slots=True)
class _Watch:
    row: GuardRow
    rule: rules.Guard


class Guards:
    """The guards of jobs that run."""

    def __init__(
        self,
        store: PlaneStore,
        jobs: JobRegistry,
        roster: Roster,
        command_rows: CommandRows,
        commands: CommandDriver,
        journal: Journal,
    ) -> None:
        self._state = store.state
        self._records = store.records
        self._jobs = jobs
        self._roster = roster
        self._command_rows = command_rows
        self._commands = commands
        self._journal = journal
        self._watches: dict[str, list[_Watch]] = {}
        for row in self._state.find(GuardRow, state=list(_OPEN)):
            self._watch(row)

    def of(self, job: str) -> dict[str, GuardRow]:
        """Return the guards of a job, by command."""
        return {row.command: row for row in self._state.find(GuardRow, job=job)}

    def add(self, job: str, command: str, words: str, span: int) -> None:
        """Guard a change that is about to be requested."""
        if self._state.one(GuardRow, command=command) is None:
            row = GuardRow(command, job, words, span)
            self._state.put(row)
            self._watch(row)

    def on_metrics(self, received: MetricsReceived) -> None:
        """Check the metrics of a rank against the guards of its job."""
        metrics = received.metrics
        watches = self._watches.get(metrics.head.job)
        if not watches:
            return
        is_first = self._is_first(metrics)
        for watch in list(watches):
            self._begin(watch)
            column = _column(metrics, watch.rule.condition.metric)
            for row in metrics.rows:
                value = _number(row[column]) if column else None
                watch.rule = rules.saw(watch.rule, is_first, _step(row), value)
            self._keep(watch)

    def tick(self) -> None:
        """Take back what is to be taken back as soon as it can be, and forget what is over."""
        for job, watches in list(self._watches.items()):
            known = self._jobs.get(job)
            for watch in list(watches):
                if known is None or is_over(known):
                    self._end(watch, "over", "the job has ended")
                elif watch.row.state == "tripped":
                    self._revert(watch)
                elif self._is_void(watch):
                    self._end(watch, "void", "the change had no effect")

    def _watch(self, row: GuardRow) -> None:
        condition = rules.condition_of(row.words)
        assert condition is not None  # it was read before it was stored
        first = min((rank.rank for rank in self._roster.ranks(row.job)), default=0)
        points = self._before(row.job, condition.metric, first)
        known = tuple((p.step, p.value) for p in points if math.isfinite(p.value))
        rule = rules.Guard(row.words, condition, _NEVER, row.span, known, row.base)
        self._watches.setdefault(row.job, []).append(_Watch(row, rule))

    def _before(self, job: str, metric: str, rank: int) -> list[PointRow]:
        """Return a metric's last points; none where records cannot be read."""
        try:
            return self._records.points(job, metric, rank, None, rules.BEFORE)
        except RecordsLost:
            return []

    def _begin(self, watch: _Watch) -> None:
        """Learn from which step on a change acts."""
        if watch.rule.begin == _NEVER and (entry := self._entry(watch)) and entry.step is not None:
            watch.rule = replace(watch.rule, begin=entry.step)

    def _keep(self, watch: _Watch) -> None:
        """Store what a guard has found out."""
        rule = watch.rule
        if rule.verdict == "kept":
            self._end(watch, "kept", rule.why)
        elif rule.verdict == "tripped" and watch.row.state == "watching":
            watch.row = replace(watch.row, state="tripped", why=rule.why, base=rule.base)
            self._state.put(watch.row)
            self._revert(watch)
        elif rule.base != watch.row.base:
            watch.row = replace(watch.row, base=rule.base)
            self._state.put(watch.row)

    def _revert(self, watch: _Watch) -> None:
        row = watch.row
        entry = self._entry(watch)
        if entry is not None and entry.status is Status.COMMITTED:
            return  # some ranks are yet to do it
        found = undo(self._commands.state(row.job).audit, row.command)
        if isinstance(found, NoUndo):
            self._end(watch, "void", f"{row.why}; not undone: {found.why}")
            return
        name = f"undo-{row.command}"
        if not ID.fullmatch(name):
            name = f"undo-{row.command[:40]}"
        reason = f"undo of {row.command}: guard {row.words}: {row.why}"
        payload = wrapped(found.values, False, row.command)
        with self._state.together():
            self._end(watch, "reverted", row.why)
            self._commands.order(row.job, Command(name, CommandKind.KNOB, payload, AUTHOR, reason))

    def _end(self, watch: _Watch, state: str, why: str) -> None:
        watch.row = replace(watch.row, state=state, why=why)
        facts = {"command": watch.row.command, "guard": watch.row.words, "steps": watch.row.span}
        with self._state.together():
            self._state.put(watch.row)
            self._journal.note(
                f"guard_{state}", watch.row.job, author=AUTHOR, reason=why, facts=facts
            )
        watches = self._watches[watch.row.job]
        watches.remove(watch)
        if not watches:
            del self._watches[watch.row.job]

    def _is_void(self, watch: _Watch) -> bool:
        entry = self._entry(watch)
        return entry is not None and entry.status in (Status.REFUSED, Status.ABORTED)

    def _entry(self, watch: _Watch) -> CommandEntry | None:
        audit = self._commands.state(watch.row.job).audit
        return next((entry for entry in audit if entry.id == watch.row.command), None)

    def _is_first(self, metrics: Metrics) -> bool:
        """Return whether these are of the lowest rank that takes steps."""
        rows = [r for r in self._roster.ranks(metrics.head.job) if r.boundary != "none"]
        if not rows:
            return False
        return min(rows, key=lambda row: row.rank).incarnation == metrics.head.incarnation


def _column(metrics: Metrics, name: str) -> int:
    """Return where a metric stands in each row; 0 when it is not there."""
    return metrics.names.index(name) + 2 if name in metrics.names else 0


def _number(value: Value) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _step(row: tuple[Value, ...]) -> int:
    return row[0] if isinstance(row[0], int) else -1
