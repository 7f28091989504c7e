"""Take over what launch processes wrote into run folders: the jobs of this home, old and new.

A folder is complete in itself; its `events.jsonl` is read on from where the last look ended, so
that whatever happened while no weaver was up is known as soon as one is.
"""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from torchloom import accounts
from torchloom.errors import UserError
from torchloom.launch.records import catalog
from torchloom.launch.records.folder import RunFolder
from torchloom.launch.records.record import RunRecord
from torchloom.launch.records.record_writer import CHANGES_SOCKET
from torchloom.messages.plane import NO_RANK, VERSION, Event, Head
from torchloom.specs.api import AppState, make_app_handle
from torchloom.specs.states import JobState
from torchloom.unix import open_file, reachable
from torchloom.weaver import account_runs
from torchloom.weaver.events import Journal, RunStarted, UnknownJobRequested
from torchloom.weaver.health.roster import Roster
from torchloom.weaver.jobs.registry import (
    DEADLINE,
    LEFT,
    POLICY,
    RELEASING,
    RESIZING,
    WORLD_SIZE,
    JobRegistry,
    is_launched,
    is_over,
    is_released,
)
from torchloom.weaver.jobs.reports import RankReports
from torchloom.weaver.store.rows import JobRow, RankProcessRow

_LONGEST = 1024  # bytes of a run's id, and more
ENGINE = "local"
_SETTLES = 10.0  # seconds for the last checkpoint of a released job to be committed
SETTLE_PERIOD = 0.1  # seconds between two checks for that
_MOST_READ, _LONGEST_LINE = 1 << 26, 1 << 22  # bytes of events at a time, and of one
_NONSENSE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError, UserError)
_READ = "events_read"  # among a job's facts: how many bytes of its events are known
_log = logging.getLogger(__name__)
_ENDS = {
    AppState.SUCCEEDED: JobState.COMPLETED,
    AppState.FAILED: JobState.FAILED,
    AppState.CANCELLED: JobState.CANCELLED,
}
_NOTED = (
    *("exit", "restart", "node_joined", "node_lost", "node_replaced", "unwatched"),
    *("resumed", "resuming", "backoff", "set_aside"),
)


class RunNotices:
    """A datagram socket for this user; what comes there is an id, or nothing that we know."""

    def __init__(self, folder: Path, on_news: Callable[[str], None]) -> None:
        self._path = folder / CHANGES_SOCKET
        self._on_news = on_news
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def open(self) -> None:
        """Open the socket; one that a dead weaver left is replaced."""
        self._path.unlink(missing_ok=True)
        with reachable(self._path) as address:
            self._socket.bind(address)
        self._path.chmod(0o600)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def close(self) -> None:
        """Close the socket."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _receive(self) -> None:
        """Take all that waits; several words about one run are one look at it."""
        runs: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                runs[self._socket.recv(_LONGEST).decode(errors="replace")] = None
        for app_id in runs:
            self._on_news(app_id)


class Adoption:
    """The run folders of this home as news for the plane."""

    def __init__(
        self,
        jobs: JobRegistry,
        roster: Roster,
        reports: RankReports,
        journal: Journal,
        dropped: Counter[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dropped = Counter[str]() if dropped is None else dropped
        self._jobs = jobs
        self._roster = roster
        self._reports = reports
        self._journal = journal
        self._clock = clock
        self._leaving: dict[str, float] = {}  # when the runs of jobs ended that are released

    def look_at_all(self) -> None:
        """Adopt every run that is not over, and learn the end of those that are."""
        self._adopt_account_runs()
        for record in catalog.records():
            if self._jobs.account(record.id):
                continue  # a folder of ours that has the name of another's job
            known = self._jobs.get(record.id)
            is_news = known is not None and (not is_over(known) or _is_later(record, known))
            if not record.is_over() or is_news:
                self.look_at(record.id)
        for job in self._jobs.active():
            if job.account and job.state != JobState.QUEUED:
                self.look_at(job.id)

    def _adopt_account_runs(self) -> None:
        """Adopt runs of accounts that are noted and not known: the database was lost."""
        for job in account_runs.noted_runs():
            known = self._jobs.get(job.id)
            if is_over(known) if known is not None else not self._is_running(job):
                account_runs.forget_run(job.id)
            elif known is None:
                self._jobs.adopt(job)

    def _is_running(self, job: JobRow) -> bool:
        try:
            record = accounts.within(job.account, catalog.record, job.id)
            return record is not None and record.id == job.id and not record.is_over()
        except _NONSENSE as error:
            self._dropped["bad_run_folder"] += 1
            _log.debug("the folder of %s cannot be understood: %r", job.id, error)
            return False

    def look_again(self) -> None:
        """Find out the jobs whose launch process is gone without a word, or speaks elsewhere.

        One on another host of this state folder reaches its own host alone with its word.
        """
        for job in self._jobs.active():
            if is_launched(job) and job.scheduler in ("", ENGINE) and job.state != JobState.QUEUED:
                self.look_at(job.id)

    def settle(self) -> None:
        """Look at the jobs whose ranks have ended and whose last checkpoint is not committed."""
        for app_id in tuple(self._leaving):
            self.look_at(app_id)

    def on_run(self, event: UnknownJobRequested | RunStarted) -> None:
        """Read the folder of a run that may be new."""
        self.look_at(event.job)

    def look_at(self, app_id: str) -> None:
        """Take in what is new in a run's folder; one that is not there is no news.

        What is in the folder of an account's job is that account's word, which may be anything.
        """
        if not self._jobs.account(app_id):
            self._look_at(app_id)
            return
        try:
            self._look_at(app_id)
        except _NONSENSE as error:
            self._dropped["bad_run_folder"] += 1
            _log.debug("the folder of %s cannot be understood: %r", app_id, error)

    def _look_at(self, app_id: str) -> None:
        account = self._jobs.account(app_id)
        record = accounts.within(account, catalog.record, app_id)
        if record is not None and account and record.id != app_id:
            raise ValueError("it is the record of another job")
        if record is None or record.parent:
            return
        if self._jobs.get(app_id) is None and record.is_over():
            return  # it ended before any weaver: its folder has it
        known = self._jobs.get(app_id)
        if known is not None and record.restarts <= known.facts.get(LEFT, -1):
            return  # a start that was left behind; the next one is yet to come
        if known is not None and (is_over(known) or is_released(known)):
            if not _is_later(record, known):
                return
            self._jobs.restarted(app_id, "resumed")
        job = self._jobs.update(_job_event(record))
        read = int(job.facts.get(_READ, 0))
        for line, end in accounts.within(account, _lines, app_id, read):
            self._take(record, line)
            read = end
        if read != job.facts.get(_READ, 0):
            self._jobs.update(_job_event(record, {_READ: read}))
        if record.is_over():
            self._end(record)

    def _end(self, record: RunRecord) -> None:
        """Take in the end of a run; one that was to be released is paused, if it went well."""
        job = self._jobs.get(record.id)
        command = str(job.facts.get(RELEASING) or "") if job is not None else ""
        is_left = command != "" and self._reports.may_have_acted(record.id, command)
        if is_left and record.state is AppState.SUCCEEDED:
            self._release(record)
        else:
            self._leaving.pop(record.id, None)
            reason = self._reason(record)
            self._reports.job_ended(record.id, _ENDS[record.state], reason, record.step)
            if reason != record.why():  # a reader of the folder alone is to know it, too
                amended = replace(record, reason=reason)
                accounts.within(self._jobs.account(record.id), _amend, amended)

    def _release(self, record: RunRecord) -> None:
        """Pause a job that has left its places, once it can be resumed from where it was saved."""
        now = self._clock()
        since = self._leaving.setdefault(record.id, now)
        if self._reports.is_settled(record.id) or now - since >= _SETTLES:
            self._leaving.pop(record.id)
            self._reports.job_released(record.id, record.restarts)

    def _take(self, record: RunRecord, line: Mapping[str, Any]) -> None:
        kind = line.get("event")
        facts = {name: value for name, value in line.items() if name not in ("time", "event")}
        if kind == "restart":
            cause = _last_cause(self._roster, record.id, str(facts.get("reason") or "restart"))
            self._jobs.turn(record.id, JobState.RECOVERING, cause)
            again = {RELEASING: None, RESIZING: None}  # that is not asked again
            self._jobs.update(_job_event(record, again))
        elif kind == "started" and not _are_newcomers(facts):
            self._jobs.turn(record.id, JobState.RUNNING, "ranks_started")
        elif kind == "exit":
            self._exited(record, facts)
        if kind in _NOTED:
            self._journal.note(kind, record.id, rank=_rank(record, facts), facts=facts)

    def _exited(self, record: RunRecord, facts: Mapping[str, Any]) -> None:
        """A keeper has seen a rank end: that alone makes it dead."""
        code, number = facts.get("code", 0), _rank(record, facts)
        how = f"exit_code_{code}" if code >= 0 else f"exit_signal_{-code}"
        for row in self._roster.ranks(record.id):
            is_rank = (row.role, row.rank, row.state) == (facts.get("role"), number, "up")
            if is_rank and _is_present_process(row, facts):
                ours = row.reason if code == -signal.SIGKILL else ""
                self._reports.rank_gone(row, ours or f"{how}_rank_{number}")

    def _reason(self, record: RunRecord) -> str:
        """Return why a job ended: where a rank was killed on our word, our reason for that."""
        for row in self._roster.ranks(record.id):
            if record.reason == f"exit_signal_9_rank_{row.rank}" and row.reason:
                return row.reason
        return record.why()


def _job_event(record: RunRecord, more: Mapping[str, Any] | None = None) -> Event:
    facts = {
        "name": record.name,
        "owner": record.owner,
        "scheduler": ENGINE,
        "handle": make_app_handle(ENGINE, record.session, record.id),
        "attempt": record.restarts + 1,
        "host": record.host,
        "log_dir": record.log_dir,
        "checkpoints": record.checkpoints,
        "saves": record.saves,
        **({DEADLINE: record.deadline} if record.deadline else {}),
        "first_error": dict(record.first_error),
        WORLD_SIZE: len(record.ranks),
        **({POLICY: dict(record.policy)} if record.policy else {}),
        **(more or {}),
    }
    head = Head(VERSION, record.id, record.generation, NO_RANK, "")
    return Event(head, "job", 0, datetime.fromisoformat(record.created_at).timestamp(), facts)


def _lines(app_id: str, begin: int) -> list[tuple[dict[str, Any], int]]:
    """Return the whole lines of a run's events from a byte on, each with where it ends."""
    found: list[tuple[dict[str, Any], int]] = []
    path, upto = RunFolder.named(app_id).path / "events.jsonl", begin + _MOST_READ
    with contextlib.suppress(OSError), open_file(path) as file:
        file.seek(begin)
        while begin < upto and (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
            begin += len(line)  # one without an end is being written
            with contextlib.suppress(ValueError):
                found.append((json.loads(line), begin))
    return found


def _amend(record: RunRecord) -> None:
    with contextlib.suppress(OSError):
        RunFolder.named(record.id).write_record(record)
    catalog.add_ended(record)


def _rank(record: RunRecord, facts: Mapping[str, Any]) -> int:
    place = (facts.get("role"), facts.get("replica"), facts.get("local_rank"))
    for rank in record.ranks:
        if (rank.role, rank.replica, rank.local_rank) == place:
            return rank.rank
    return NO_RANK


def _is_present_process(row: RankProcessRow, facts: Mapping[str, Any]) -> bool:
    """Tell whether an exit is that of a rank's present process.

    A process of attempt 0 without that fact, as of an older torchloom, is known by its generation.
    """
    attempt, number = facts.get("attempt", row.attempt), facts.get("life", 1)
    is_known = row.attempt or row.life > 1 or row.generation == 0 or attempt == 0
    return (attempt, number) == ((row.attempt if is_known else row.generation), row.life)


def _are_newcomers(facts: Mapping[str, Any]) -> bool:
    """Tell whether processes took the places of others while the rest went on."""
    ranks = facts.get("ranks")
    numbers = [one.get("life", 1) for one in ranks] if isinstance(ranks, list) else []
    return bool(numbers) and min(numbers) > 1


def _is_later(record: RunRecord, job: JobRow) -> bool:
    """Tell whether a run has continued since the job it belongs to has ended."""
    return record.restarts + 1 > job.attempt


def _last_cause(roster: Roster, job: str, said: str) -> str:
    """Return why a job recovers: what we know of the first end that a keeper has seen, else of
    the first of all, else what its launch process says."""
    ended = [row for row in roster.ranks(job) if row.state != "up" and row.reason]
    gone = [row for row in ended if row.state == "gone"] or ended
    return min(gone, key=lambda row: row.ended_at or 0.0).reason if gone else said
