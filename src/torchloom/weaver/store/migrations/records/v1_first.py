"""Metrics, events, and up to which number each incarnation's records are stored."""

import sqlalchemy as sa
from alembic import op

revision = "records_1"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "series",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("rank", NUMBER, nullable=False),
    )
    op.create_index("series_by_name", "series", ["job", "name", "rank"], unique=True)
    op.create_table(
        "metrics",
        sa.Column("series", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("step", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("generation", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("value", sa.Double),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "events",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("rank", NUMBER, nullable=False),
        sa.Column("generation", NUMBER, nullable=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("step", NUMBER, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
    )
    once = ["job", "rank", "incarnation", "number"]
    op.create_index("events_once", "events", once, unique=True)
    op.create_index("events_by_job", "events", ["job", "id"])
    op.create_table(
        "received",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("rank", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("incarnation", sa.Text, primary_key=True),
        sa.Column("upto", NUMBER, nullable=False),
        sa.Column("dropped", NUMBER, nullable=False),
    )
