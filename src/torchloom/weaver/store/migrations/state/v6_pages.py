"""Jobs are listed newest first, page by page: an index in that order."""

from alembic import op

revision = "state_6"
down_revision = "state_5"


def upgrade() -> None:
    op.create_index("jobs_by_time", "jobs", ["created_at", "id"])
