"""Read the databases of a plane without its weaver: nothing is made, migrated or written."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from torchloom.weaver.store import state_tables as tables
from torchloom.weaver.store.engine import Part
from torchloom.weaver.store.place import DatabasePlace
from torchloom.weaver.store.rows import CheckpointRow, EventRow, JobRow
from torchloom.weaver.store.schema import HEADS, version_of
from torchloom.weaver.store.series.records import RecordStore
from torchloom.weaver.store.state import StateLost, StateStore

_PATIENCE = 5.0  # seconds to wait for a lock or a server
_AT_ONCE = 200  # rows whose labels are read at a time
_THREADS = 8  # connections that are kept
Before = tuple[float, str]  # when a job was made, and its id: where a page of jobs begins


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a reader wants; an empty field does not filter."""

    states: tuple[str, ...] = ()
    owner: str = ""
    name: str = ""
    project: str = ""
    tag: str = ""
    since: float | None = None
    until: float | None = None

    @property
    def has_labels(self) -> bool:
        """Tell whether it must be looked into what was submitted."""
        return bool(self.project or self.tag)


class StateReader(StateStore):
    """Queries of `state` beyond those of the weaver."""

    def page(self, wanted: JobFilter, before: Before | None, limit: int) -> list[JobRow]:
        """Return so many of the wanted jobs made before one, newest first."""
        found: list[JobRow] = []
        at_once = _AT_ONCE if wanted.has_labels else limit
        while True:
            rows = self._read(JobRow, _jobs(wanted, before).limit(at_once))
            fitting = [row for row in rows if _is_labelled(row["spec"], wanted)]
            found += [_job(row) for row in fitting[: limit - len(found)]]
            if len(rows) < at_once or len(found) >= limit:
                return found
            before = (rows[-1]["created_at"], rows[-1]["id"])

    def authored(self, job: str, after: int, limit: int) -> list[EventRow]:
        """Return the actions of users on a job after a number, oldest first."""
        table = tables.events
        query = sa.select(table).where(table.c.job == job, table.c.seq > after)
        query = query.where(table.c.author != "").order_by(table.c.seq).limit(limit)
        return [EventRow(**row) for row in self._read(EventRow, query)]

    def checkpoints(
        self, job: str, before: tuple[int, ...] | None, limit: int
    ) -> list[CheckpointRow]:
        """Return so many of a job's checkpoints before one, newest first."""
        table = tables.checkpoints
        key = (table.c.step, table.c.generation, table.c.attempt)
        query = sa.select(table).where(table.c.job == job)
        if before is not None:
            query = query.where(sa.tuple_(*key) < sa.tuple_(*before))
        query = query.order_by(*(column.desc() for column in key)).limit(limit)
        return [CheckpointRow(**row) for row in self._read(CheckpointRow, query)]

    def saved(self) -> dict[str, int]:
        """Return how many checkpoints of all jobs are in each state."""
        column = tables.checkpoints.c.state
        query = sa.select(column, sa.func.count().label("count")).group_by(column)
        return {row["state"]: row["count"] for row in self._read(CheckpointRow, query)}

    def last_saved(self, jobs: Sequence[str]) -> dict[str, float]:
        """Return when the last checkpoint of some jobs was committed, in unix seconds."""
        table = tables.checkpoints
        last = sa.func.max(table.c.committed_at).label("last")
        query = sa.select(table.c.job, last).where(table.c.job.in_(jobs)).group_by(table.c.job)
        found = self._read(CheckpointRow, query)
        return {row["job"]: row["last"] for row in found if row["last"] is not None}

    def by_state(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        column = tables.jobs.c.state
        query = sa.select(column, sa.func.count().label("jobs")).group_by(column)
        return {row["state"]: row["jobs"] for row in self._read(JobRow, query)}

    def version(self) -> str:
        """Return the schema that the database has."""
        with self._mapped(), self._engine.connect() as connection:
            return version_of(connection)


@dataclass(frozen=True, slots=True)
class PlaneReader:
    """Both databases of a plane, for reading."""

    place: DatabasePlace
    state: StateReader
    records: RecordStore

    def check(self) -> None:
        """Raise what keeps a reader from understanding the database."""
        found = self.state.version()
        if found != HEADS["state"]:
            raise StateLost(
                f"the state database has schema {found or 'none'!r}, not {HEADS['state']!r};"
                " the weaver migrates it: restart the plane with this version of torchloom"
            )

    def close(self) -> None:
        """Close both databases."""
        self.state.close()
        self.records.close()


def open_reading(place: DatabasePlace) -> PlaneReader:
    """Return readers of a place; whether it is there shows when they are asked."""
    state, records = _engine(place, "state"), _engine(place, "records")
    return PlaneReader(place, StateReader(state), RecordStore(records))


def _engine(place: DatabasePlace, part: Part) -> sa.Engine:
    if place.folder is None:
        options = f"-csearch_path={part} -cdefault_transaction_read_only=on"
        args = {"options": options, "connect_timeout": int(_PATIENCE)}
        address = f"postgresql+psycopg://{place.url.partition('://')[2]}"
        return sa.create_engine(address, connect_args=args, pool_pre_ping=True, pool_size=_THREADS)
    path = place.folder / f"{part}.db"
    return sa.create_engine(
        "sqlite://", creator=lambda: _connect(path), poolclass=sa.QueuePool, pool_size=_THREADS
    )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro",
        uri=True,
        timeout=_PATIENCE,
        isolation_level=None,
        check_same_thread=False,
    )


def _jobs(wanted: JobFilter, before: Before | None) -> sa.Select[Any]:
    table, labels = tables.jobs, tables.submissions
    spec = labels.c.spec if wanted.has_labels else sa.null().label("spec")
    query = sa.select(table, spec)
    if wanted.has_labels:
        query = query.join(labels, labels.c.job == table.c.id)
    for condition in _conditions(wanted, before):
        query = query.where(condition)
    return query.order_by(table.c.created_at.desc(), table.c.id.desc())


def _conditions(wanted: JobFilter, before: Before | None) -> Sequence[sa.ColumnElement[bool]]:
    table = tables.jobs
    found: list[sa.ColumnElement[bool]] = []
    if wanted.states:
        found.append(table.c.state.in_(wanted.states))
    for column in ("owner", "name"):
        if value := getattr(wanted, column):
            found.append(table.c[column] == value)
    if wanted.since is not None:
        found.append(table.c.created_at >= wanted.since)
    if wanted.until is not None:
        found.append(table.c.created_at < wanted.until)
    if before is not None:
        found.append(sa.tuple_(table.c.created_at, table.c.id) < sa.tuple_(*before))
    return found


def _is_labelled(spec: Any, wanted: JobFilter) -> bool:
    """Tell whether the labels of a submitted job are those that are wanted."""
    if not wanted.has_labels:
        return True
    if wanted.project and spec.get("project") != wanted.project:
        return False
    return not wanted.tag or wanted.tag in (spec.get("tags") or ())


def _job(row: Any) -> JobRow:
    return JobRow(**{name: value for name, value in row.items() if name != "spec"})
