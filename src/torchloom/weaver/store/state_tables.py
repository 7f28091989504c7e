"""The tables of `state`: each has the columns of its row class, and its keys and indices here.

The migrations make the tables; a test compares them with these.
"""

from dataclasses import Field, fields
from types import NoneType
from typing import Any, get_args

import sqlalchemy as sa

from torchloom.weaver.store import rows
from torchloom.weaver.store.engine import JsonText, Number, TextColumn

METADATA = sa.MetaData()
TABLE_OF: dict[type[rows.StoredRow], sa.Table] = {}
_TYPES: dict[Any, Any] = {
    str: TextColumn,
    int: Number,
    float: sa.Double,
    bool: sa.Boolean,
    Any: JsonText,
}


def _table(
    name: str,
    row: type[rows.StoredRow],
    keys: tuple[str, ...],
    *indices: sa.Index,
    grows: bool = False,  # the database numbers new rows
) -> sa.Table:
    columns = (_column(each, each.name in keys, grows) for each in fields(row))
    table = TABLE_OF[row] = sa.Table(name, METADATA, *columns, *indices)
    return table


def _column(field: "Field[Any]", is_key: bool, grows: bool) -> sa.Column[Any]:
    """Return the column of a field; one that may be None is nullable."""
    kinds = get_args(field.type) or (field.type,)
    return sa.Column(
        field.name,
        _TYPES[kinds[0]],
        primary_key=is_key,
        nullable=NoneType in kinds,
        autoincrement="auto" if grows else False,
    )


epochs = _table("epochs", rows.Epoch, ("epoch",))
jobs = _table("jobs", rows.JobRow, ("id",), sa.Index("jobs_by_time", "created_at", "id"))
runs = _table("runs", rows.RunRow, ("id",))
agents = _table("agents", rows.AgentRow, ("id",))
devices = _table("devices", rows.DeviceRow, ("uuid",))
ranks = _table("ranks", rows.RankProcessRow, ("job", "role", "rank"))
drmap = _table("drmap", rows.MapEntry, ("device", "process"))
facts = _table("facts", rows.Fact, ("name",))
commands = _table(
    "commands",
    rows.CommandRow,
    ("id",),
    sa.Index("commands_by_job", "job", "number", unique=True),
)
command_acks = _table("command_acks", rows.CommandAck, ("command", "generation", "rank"))
guards = _table("guards", rows.GuardRow, ("command",))
events = _table(
    "events", rows.EventRow, ("seq",), sa.Index("events_by_job", "job", "seq"), grows=True
)
submissions = _table(
    "submissions",
    rows.SubmissionRow,
    ("job",),
    sa.Index("submissions_by_number", "number", unique=True),
    sa.Index("submissions_by_key", "owner", "key"),
)
placements = _table("placements", rows.Placement, ("job", "node"))
quotas = _table("quotas", rows.QuotaRow, ("owner",))
checkpoints = _table(
    "checkpoints",
    rows.CheckpointRow,
    ("job", "step", "generation", "attempt"),
    sa.Index("checkpoints_by_state", "state"),
)
regroupings = _table("regroupings", rows.LiveRecoveryRow, ("job",))
users = _table("users", rows.UserRow, ("name",))
tokens = _table("tokens", rows.TokenRow, ("id",), sa.Index("tokens_by_hash", "hash", unique=True))
links = _table("links", rows.LinkRow, ("hash",))
