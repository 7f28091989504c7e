"""Guards of changes, and how far a job came; what knobs are to be is read from the commands."""

import sqlalchemy as sa
from alembic import op

revision = "state_2"
down_revision = "state_1"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.drop_table("desired")
    op.add_column("jobs", sa.Column("step", NUMBER))
    op.create_table(
        "guards",
        sa.Column("command", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("span", NUMBER, nullable=False),
        sa.Column("base", sa.Double),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
