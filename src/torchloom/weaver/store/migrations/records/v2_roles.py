"""Curves of ranks that have the same number in different roles."""

import sqlalchemy as sa
from alembic import op

revision = "records_2"
down_revision = "records_1"


def upgrade() -> None:
    op.add_column("series", sa.Column("role", sa.Text, nullable=False, server_default=""))
    op.drop_index("series_by_name", "series")
    op.create_index("series_by_name", "series", ["job", "name", "rank", "role"], unique=True)
