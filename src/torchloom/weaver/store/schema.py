"""Bring a database to the schema of this version; one that is newer is left alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from torchloom.errors import Failure
from torchloom.weaver.store.engine import Part

if TYPE_CHECKING:
    from alembic.config import Config

HEADS: dict[Part, str] = {"state": "state_10", "records": "records_3"}
_FOLDER = Path(__file__).parent / "migrations"


class SchemaNewer(Failure):
    """A later torchloom has written this database."""

    code = "schema_newer"

    def __init__(self, part: Part, found: str) -> None:
        super().__init__(
            f"the {part} database has schema {found!r}, which this torchloom does not know:"
            f" it knows schemas up to {HEADS[part]!r}. Nothing was changed. Install the newer"
            " torchloom that wrote it, or set LOOM_HOME to another folder"
        )


def refuse_newer(engine: sa.Engine, part: Part) -> None:
    """Raise SchemaNewer if a database is newer than this version; nothing is written."""
    with engine.connect() as connection:
        found = version_of(connection)
    if found and _number(found) > _number(HEADS[part]):
        raise SchemaNewer(part, found)


def upgrade(engine: sa.Engine, part: Part, upto: str = "") -> None:
    """Run the migrations that are missing, all or none; two at once wait for each other."""
    upto = upto or HEADS[part]
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        _claim(connection, part)
        found = version_of(connection)
        if found == upto:
            return
        _run(connection, part, found, upto)


def create(connection: sa.Connection, part: Part, revision: str) -> None:
    """Make the tables of one part at a revision, in the caller's transaction."""
    _claim(connection, part)
    _run(connection, part, "", revision)


def version_of(connection: sa.Connection) -> str:
    """Return the schema a database has; nothing for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(sa.text("SELECT version_num FROM alembic_version")) or ""


def _number(revision: str) -> float:
    """Return the number of a revision; one without a number is not ours, and counts as later."""
    number = revision.rpartition("_")[2]
    return int(number) if number.isdecimal() else float("inf")


def _claim(connection: sa.Connection, part: Part) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('torchloom'))"))
        connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {part}"))


def known_schemas(part: Part) -> set[str]:
    """Return the schemas that a database of this torchloom has or can be brought from."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config(part)).walk_revisions()
    return {script.revision for script in scripts}


def _run(connection: sa.Connection, part: Part, found: str, upto: str) -> None:
    # Imported here: a database that is up to date is opened without it.
    from alembic import command

    if found and found not in known_schemas(part):
        raise SchemaNewer(part, found)
    config = _config(part)
    config.attributes["connection"] = connection
    command.upgrade(config, upto)


def _config(part: Part) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.set_main_option("version_locations", str(_FOLDER / part))
    config.set_main_option("path_separator", "newline")
    return config
