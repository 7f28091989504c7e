"""Read and write `state`: plain rows in, plain rows out, every write durable before it returns."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from threading import get_ident
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from torchloom.errors import Failure
from torchloom.weaver.store import state_tables as tables
from torchloom.weaver.store.backup import REMEDY
from torchloom.weaver.store.rows import Epoch, EventRow, StoredRow

_LARGEST = 2**63 - 1
R = TypeVar("R", bound=StoredRow)
_HIGHEST = "SELECT max(epoch) FROM epochs"  # read in every transaction


class Transaction:
    """One transaction of the thread that began it."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._thread = get_ident()
        self._rows: dict[type[StoredRow], dict[tuple[Any, ...], dict[str, Any]]] = {}
        self._notes: list[dict[str, Any]] = []

    @property
    def is_ours(self) -> bool:
        """Tell whether this thread began it; other threads must not read uncommitted rows."""
        return self._thread == get_ident()

    def put(self, row: StoredRow) -> None:
        """Store a row, instead of any with the same key."""
        kind: Any = type(row)
        values = {name: _held(getattr(row, name)) for name in _columns(kind)}
        key = tuple(values[name] for name in _keys(kind))
        self._rows.setdefault(kind, {})[key] = values

    def note(self, happening: EventRow) -> None:
        """Store an event with the next number."""
        values = {name: _held(getattr(happening, name)) for name in _columns(EventRow)}
        del values["seq"]
        self._notes.append(values)

    def flush(self, kind: type[StoredRow] | None = None) -> None:
        """Send the pending rows, or those of one kind, to the database."""
        kinds: list[Any] = list(self._rows) if kind is None else [kind]
        for each in kinds:
            rows = self._rows.pop(each, None)
            if rows:
                self.connection.execute(_upsert(each, self._dialect), list(rows.values()))
        if self._notes and kind in (None, EventRow):
            notes, self._notes = self._notes, []
            self.connection.execute(sa.insert(tables.events), notes)

    @property
    def _dialect(self) -> str:
        return self.connection.dialect.name


def _held(value: Any) -> Any:
    """Return a value as a database takes it: of a number that is too large, the largest it has."""
    return min(max(value, -_LARGEST), _LARGEST) if type(value) is int else value


@cache
def _columns(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _keys(kind: Any) -> tuple[str, ...]:
    return tuple(column.name for column in tables.TABLE_OF[kind].primary_key.columns)


@cache
def _upsert(kind: Any, dialect: str) -> sa.Executable:
    table = tables.TABLE_OF[kind]
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    keys = _keys(kind)
    others = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in keys}
    statement: sa.Executable = insert.on_conflict_do_update(index_elements=keys, set_=others)
    return statement


class StateLost(Failure):
    """Memory may differ from the database: the weaver must end and start again."""

    code = "state_lost"


class Superseded(StateLost):
    """A later weaver has taken over: this one may not write any more."""

    code = "superseded"

    def __init__(self, mine: int, highest: int) -> None:
        super().__init__(
            f"this weaver has epoch {mine}, but one with epoch {highest} is running;"
            " end this process"
        )


class StateStore:
    """The rows of `state`. One thread of one process writes; a superseded weaver is refused."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._open: Transaction | None = None
        self.epoch = 0  # none taken: writes are not fenced, as in tests and repairs

    def take_epoch(self, host: str, pid: int, least: int = 0) -> int:
        """Become the weaver that may write; all before this one may not from now on.

        The epoch is higher than `least`, whatever this database has of earlier ones.
        """
        with self.together() as transaction:
            found: int = transaction.connection.exec_driver_sql(_HIGHEST).scalar() or 0
            highest = max(found, least)
            self.put(Epoch(highest + 1, host, pid, time.time()))
        self.epoch = highest + 1
        return self.epoch

    def check(self) -> None:
        """Raise Superseded when a later weaver has started."""
        with self._mapped(), self._engine.connect() as connection:
            self._compare(connection)

    @contextlib.contextmanager
    def together(self) -> Iterator[Transaction]:
        """Make what is written inside one transaction: all of it is stored, or nothing."""
        if self._open is not None and self._open.is_ours:
            yield self._open
            return
        with self._mapped(), self._engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin():
                self._fence(connection)
                self._open = Transaction(connection)
                try:
                    yield self._open
                    self._open.flush()
                finally:
                    self._open = None

    def put(self, *rows: StoredRow) -> None:
        """Store rows; one with the same key is replaced."""
        if rows:
            with self.together() as transaction:
                for row in rows:
                    transaction.put(row)

    def find(self, kind: type[R], **where: Any) -> list[R]:
        """Return the rows whose columns have these values, by key; a list stands for any of it."""
        table = tables.TABLE_OF[kind]
        query = _where(sa.select(table), table, where).order_by(*table.primary_key.columns)
        return [kind(**row) for row in self._read(kind, query)]

    def one(self, kind: type[R], **where: Any) -> R | None:
        """Return the row with this key, if there is one."""
        return next(iter(self.find(kind, **where)), None)

    def remove(self, kind: type[StoredRow], **where: Any) -> None:
        """Remove the rows whose columns have these values."""
        table = tables.TABLE_OF[kind]
        with self.together() as transaction:
            transaction.flush(kind)
            transaction.connection.execute(_where(sa.delete(table), table, where))

    def note(self, *happenings: EventRow) -> None:
        """Append events; each gets the next number."""
        if happenings:
            with self.together() as transaction:
                for happening in happenings:
                    transaction.note(happening)

    def happened(self, job: str | None = None, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """Return the events after a number, oldest first."""
        table = tables.events
        query = sa.select(table).where(table.c.seq > after).order_by(table.c.seq).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        return [EventRow(**row) for row in self._read(EventRow, query)]

    def last_happened(
        self, job: str | None = None, limit: int = 100, kinds: Sequence[str] = ()
    ) -> list[EventRow]:
        """Return the newest events, oldest first: of some kinds, or of all."""
        table = tables.events
        query = sa.select(table).order_by(table.c.seq.desc()).limit(limit)
        if job is not None:
            query = query.where(table.c.job == job)
        if kinds:
            query = query.where(table.c.kind.in_(kinds))
        return [EventRow(**row) for row in reversed(self._read(EventRow, query))]

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def _read(self, kind: type[StoredRow], query: sa.Select[Any]) -> Sequence[Any]:
        if self._open is not None and self._open.is_ours:
            self._open.flush(kind)
            return self._open.connection.execute(query).mappings().all()
        with self._mapped(), self._engine.connect() as connection:
            return connection.execute(query).mappings().all()

    def _fence(self, connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
            connection.execute(sa.text("LOCK TABLE epochs IN SHARE ROW EXCLUSIVE MODE"))
        self._compare(connection)

    def _compare(self, connection: sa.Connection) -> None:
        if self.epoch:
            highest: int = connection.exec_driver_sql(_HIGHEST).scalar() or 0
            if highest > self.epoch:
                raise Superseded(self.epoch, highest)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            why = str(error.orig).strip()
            if isinstance(error, sa.exc.OperationalError) or self._engine.name != "sqlite":
                raise StateLost(f"the state database failed: {why}") from error
            raise StateLost(f"state.db is damaged ({why}); {REMEDY}") from error


def _where(query: Any, table: sa.Table, where: dict[str, Any]) -> Any:
    for name, value in where.items():
        column = table.c[name]
        wanted = isinstance(value, (list, tuple, set, frozenset))
        query = query.where(column.in_(list(value)) if wanted else column == value)
    return query
