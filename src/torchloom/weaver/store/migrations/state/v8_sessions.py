"""A browser's session has two secrets; those that have one are ended."""

import time

import sqlalchemy as sa
from alembic import op

revision = "state_8"
down_revision = "state_7"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("proof", sa.Text, nullable=False, server_default=""))
    end = "UPDATE tokens SET revoked_at = :now WHERE kind = 'cookie' AND revoked_at IS NULL"
    op.get_bind().execute(sa.text(end), {"now": time.time()})
