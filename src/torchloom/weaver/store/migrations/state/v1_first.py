"""Epochs, jobs, runs, agents, devices, ranks, the device map, commands and their outcomes."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "state_1"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, NUMBER, nullable=False) for name in names]


def _time(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Double, nullable=False) for name in names]


def _key(name: str, kind: Any = sa.Text) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def upgrade() -> None:
    _who_is_there()
    _what_was_asked()
    op.create_table(
        "events",
        sa.Column("seq", NUMBER, primary_key=True),
        *_time("time"),
        *_text("job", "kind"),
        *_number("rank"),
        sa.Column("step", NUMBER),
        *_text("author", "reason", "facts"),
    )
    op.create_index("events_by_job", "events", ["job", "seq"])
    op.create_table("facts", _key("name"), *_text("value"))


def _who_is_there() -> None:
    op.create_table(
        "epochs", _key("epoch", NUMBER), *_text("host"), *_number("pid"), *_time("started_at")
    )
    op.create_table(
        "jobs",
        _key("id"),
        *_text("name", "owner", "scheduler", "handle", "state", "reason", "run_id"),
        *_number("attempt", "generation"),
        *_time("created_at"),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        *_text("facts"),
    )
    op.create_table("runs", _key("id"), *_text("job", "name", "config"), *_time("created_at"))
    op.create_table(
        "agents",
        _key("id"),
        *_text("host", "boot"),
        *_number("pid"),
        *_text("state", "reason"),
        *_time("first_seen", "greeted_at"),
    )
    op.create_table(
        "devices",
        _key("uuid"),
        *_text("node", "kind"),
        *_number("index", "memory"),
        *_text("state", "source", "reason"),
        *_time("changed_at"),
    )
    op.create_table(
        "ranks",
        *(_key("job"), _key("role"), _key("rank", NUMBER)),
        *_number("generation"),
        *_text("incarnation"),
        *_number("world_size", "local_rank"),
        *_text("node", "agent"),
        *_number("pid", "started"),
        *_text("replica", "devices", "boundary", "knobs", "state", "reason"),
        *_time("registered_at"),
        sa.Column("ended_at", sa.Double),
    )
    op.create_table("drmap", _key("device"), _key("process"), *_number("version"))


def _what_was_asked() -> None:
    op.create_table(
        "commands",
        _key("id"),
        *_number("number"),
        *_text("job", "kind", "payload"),
        sa.Column("at", NUMBER),
        *_text("author", "reason"),
        *_time("asked_at"),
        *_text("state"),
        *_number("generation", "offer"),
        sa.Column("effective", NUMBER),
        *_text("before", "after", "outcome"),
        sa.Column("ended_at", sa.Double),
    )
    op.create_index("commands_by_job", "commands", ["job", "number"], unique=True)
    op.create_table(
        "command_acks",
        *(_key("command"), _key("generation", NUMBER), _key("rank", NUMBER)),
        *_text("incarnation", "state"),
        sa.Column("step", NUMBER),
        sa.Column("ahead", NUMBER),
        *_text("why", "before", "after"),
        *_time("at"),
    )
    op.create_table(
        "desired",
        *(_key("job"), _key("name")),
        *_text("value"),
        sa.Column("hold", sa.Boolean, nullable=False),
        *_text("command"),
        sa.Column("effective", NUMBER),
    )
