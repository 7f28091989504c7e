"""What was submitted, where it was placed, and how much each owner may have."""

import sqlalchemy as sa
from alembic import op

revision = "state_3"
down_revision = "state_2"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "submissions",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("priority", NUMBER, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("cwd", sa.Text, nullable=False),
        sa.Column("python", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
    )
    op.create_index("submissions_by_number", "submissions", ["number"], unique=True)
    op.create_index("submissions_by_key", "submissions", ["owner", "key"])
    op.create_table(
        "placements",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("workers", NUMBER, nullable=False),
        sa.Column("cpus", NUMBER, nullable=False),
        sa.Column("memory_mb", NUMBER, nullable=False),
        sa.Column("gpus", sa.Text, nullable=False),
    )
    op.create_table(
        "quotas",
        sa.Column("owner", sa.Text, primary_key=True),
        sa.Column("workers", NUMBER, nullable=False),
    )
