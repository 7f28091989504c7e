"""The tables of `records`: what ranks and agents told, kept whatever its generation."""

import sqlalchemy as sa

from torchloom.weaver.store.columns import JsonText, Number, Words

METADATA = sa.MetaData()

series = sa.Table(
    "series",
    METADATA,
    sa.Column("id", Number, primary_key=True),
    sa.Column("job", Words, nullable=False),
    sa.Column("name", Words, nullable=False),
    sa.Column("rank", Number, nullable=False),
    sa.Column("role", Words, nullable=False, server_default=""),
    sa.Index("series_by_name", "job", "name", "rank", "role", unique=True),
)
metrics = sa.Table(
    "metrics",
    METADATA,
    sa.Column("series", Number, primary_key=True, autoincrement=False),
    sa.Column("step", Number, primary_key=True, autoincrement=False),
    sa.Column("generation", Number, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("value", sa.Double),  # NULL is NaN, which SQLite does not know
    sqlite_with_rowid=False,
)
events = sa.Table(
    "events",
    METADATA,
    sa.Column("id", Number, primary_key=True),
    sa.Column("job", Words, nullable=False),
    sa.Column("rank", Number, nullable=False),
    sa.Column("generation", Number, nullable=False),
    sa.Column("incarnation", Words, nullable=False),
    sa.Column("number", Number, nullable=False),
    sa.Column("kind", Words, nullable=False),
    sa.Column("step", Number, nullable=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("facts", JsonText, nullable=False),
    sa.Index("events_once", "job", "rank", "incarnation", "number", unique=True),
    sa.Index("events_by_job", "job", "id"),
)
received = sa.Table(
    "received",
    METADATA,
    sa.Column("job", Words, primary_key=True),
    sa.Column("rank", Number, primary_key=True, autoincrement=False),
    sa.Column("incarnation", Words, primary_key=True),
    sa.Column("upto", Number, nullable=False),
    sa.Column("dropped", Number, nullable=False),
)
