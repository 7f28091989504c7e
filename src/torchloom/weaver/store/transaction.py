"""What is written together: rows wait until somebody looks or the end, then go in few statements.

A thousand agents that say hello at once change ten thousand rows; one statement each would take
seconds of a weaver's time.
"""

from dataclasses import fields
from functools import cache
from threading import get_ident
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from torchloom.weaver.store import state_tables as tables
from torchloom.weaver.store.rows import Happening, Row

_LARGEST = 2**63 - 1


class Transaction:
    """One transaction of the thread that began it."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._thread = get_ident()
        self._rows: dict[type[Row], dict[tuple[Any, ...], dict[str, Any]]] = {}
        self._notes: list[dict[str, Any]] = []

    @property
    def is_ours(self) -> bool:
        """Tell whether this thread began it; no other may look at what is half done."""
        return self._thread == get_ident()

    def put(self, row: Row) -> None:
        """Have a row stored, instead of any with the same key."""
        kind: Any = type(row)
        values = {name: _held(getattr(row, name)) for name in _columns(kind)}
        key = tuple(values[name] for name in _keys(kind))
        self._rows.setdefault(kind, {})[key] = values

    def note(self, happening: Happening) -> None:
        """Have something that happened stored, with the next number."""
        values = {name: _held(getattr(happening, name)) for name in _columns(Happening)}
        del values["seq"]
        self._notes.append(values)

    def flush(self, kind: type[Row] | None = None) -> None:
        """Send what waits, or what waits of one kind, to the database."""
        kinds: list[Any] = list(self._rows) if kind is None else [kind]
        for each in kinds:
            rows = self._rows.pop(each, None)
            if rows:
                self.connection.execute(_upsert(each, self._dialect), list(rows.values()))
        if self._notes and kind in (None, Happening):
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
