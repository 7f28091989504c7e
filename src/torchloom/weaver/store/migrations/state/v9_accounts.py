"""People may be bound to unix accounts, and a job knows the account that it runs as."""

import sqlalchemy as sa
from alembic import op

revision = "state_9"
down_revision = "state_8"


def upgrade() -> None:
    op.add_column("users", sa.Column("run_as", sa.Text, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("account", sa.Text, nullable=False, server_default=""))
