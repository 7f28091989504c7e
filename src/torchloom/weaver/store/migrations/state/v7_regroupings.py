"""Live recoveries, and the number of each process of a rank."""

import sqlalchemy as sa
from alembic import op

revision = "state_7"
down_revision = "state_6"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name, value in (("life", "1"), ("attempt", "0")):
        op.add_column("ranks", sa.Column(name, NUMBER, nullable=False, server_default=value))
    op.create_table(
        "regroupings",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("attempt", NUMBER, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("store", sa.Text, nullable=False),
        sa.Column("stored", NUMBER, nullable=False),
        sa.Column("since", sa.Double),
        sa.Column("cause", sa.Text, nullable=False),
    )
