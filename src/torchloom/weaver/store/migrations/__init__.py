"""The history of the two schemas; Alembic finds its scripts here."""
