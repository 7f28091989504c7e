"""Bring a database to the schema of this version; one that is newer is left alone."""

from pathlib import Path

import sqlalchemy as sa

from torchloom.errors import Failure
from torchloom.weaver.store.engine import Part

HEADS: dict[Part, str] = {"state": "state_7", "records": "records_3"}
_FOLDER = Path(__file__).parent / "migrations"


class SchemaNewer(Failure):
    """A later torchloom has written this database."""

    code = "schema_newer"

    def __init__(self, part: str, found: str) -> None:
        super().__init__(
            f"the {part} database has schema {found!r}, which this torchloom does not know;"
            " upgrade torchloom, or set LOOM_HOME to another folder"
        )


def upgrade(engine: sa.Engine, part: Part) -> None:
    """Run the migrations that are missing, all or none; two at once wait for each other."""
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        _claim(connection, part)
        found = version_of(connection)
        if found == HEADS[part]:
            return
        _run(connection, part, found)


def version_of(connection: sa.Connection) -> str:
    """Return the schema a database has; nothing for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.text("SELECT version_num FROM alembic_version")) or ""


def _claim(connection: sa.Connection, part: Part) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('torchloom'))"))
        connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {part}"))


def _run(connection: sa.Connection, part: Part, found: str) -> None:
    # Imported here: a database that is up to date is opened without it.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.set_main_option("version_locations", str(_FOLDER / part))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found and found not in known:
        raise SchemaNewer(part, found)
    command.upgrade(config, HEADS[part])
