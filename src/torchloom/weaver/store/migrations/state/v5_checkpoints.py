"""Checkpoints: what was written, committed and removed."""

import sqlalchemy as sa
from alembic import op

revision = "state_5"
down_revision = "state_4"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("step", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("generation", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("attempt", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("world_size", NUMBER, nullable=False),
        sa.Column("bytes", NUMBER, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("committed_at", sa.Double),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("shards", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
    )
    op.create_index("checkpoints_by_state", "checkpoints", ["state"])
