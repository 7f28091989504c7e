"""A checkpoint may be what the program's trainer saved in its own way."""

import sqlalchemy as sa
from alembic import op

revision = "state_10"
down_revision = "state_9"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("trainer", sa.Text, nullable=False, server_default=""))
    op.add_column("checkpoints", sa.Column("path", sa.Text, nullable=False, server_default=""))
