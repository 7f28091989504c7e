"""An empty or older database gets this version's schema, a newer one is left alone."""

from pathlib import Path
from typing import get_args

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from torchloom.weaver.store import DatabasePlace, open_store, state_tables
from torchloom.weaver.store.backup import DatabaseDamaged
from torchloom.weaver.store.engine import Part, engine_of
from torchloom.weaver.store.rows import JobRow
from torchloom.weaver.store.schema import HEADS, SchemaNewer, upgrade, version_of
from torchloom.weaver.store.series import tables
from torchloom.weaver.store.store import DatabaseUnreachable

PARTS: tuple[Part, ...] = get_args(Part)
METADATA = {"state": state_tables.METADATA, "records": tables.METADATA}


@pytest.mark.parametrize("part", PARTS)
def test_the_migrations_lead_to_the_tables_that_the_code_uses(
    place: DatabasePlace, part: Part
) -> None:
    engine = engine_of(place, part)

    upgrade(engine, part)

    with engine.connect() as connection:
        assert version_of(connection) == HEADS[part]
        assert compare_metadata(MigrationContext.configure(connection), METADATA[part]) == []
    engine.dispose()


@pytest.mark.parametrize("part", PARTS)
def test_the_head_that_is_looked_for_is_the_last_migration(part: Part) -> None:
    assert ScriptDirectory.from_config(config_of(part)).get_heads() == [HEADS[part]]


def test_a_session_of_one_secret_is_ended_and_a_token_is_left_as_it_is(
    place: DatabasePlace,
) -> None:
    engine, config = engine_of(place, "state"), config_of("state")
    columns = "id, user, label, hash, kind, created_at, expires_at, revoked_at, key"
    add = f"INSERT INTO tokens ({columns}) VALUES (:id, 'a', '', :id, :kind, 1.0, NULL, :at, '')"
    old = [("t-1", "cookie", None), ("t-2", "cookie", 5.0), ("t-3", "token", None)]
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if place.folder is None:
            connection.execute(sa.text("CREATE SCHEMA state"))
            add = add.replace("user,", '"user",')
        config.attributes["connection"] = connection
        command.upgrade(config, "state_7")
        for name, kind, at in old:
            connection.execute(sa.text(add), {"id": name, "kind": kind, "at": at})

    upgrade(engine, "state")

    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT revoked_at, proof FROM tokens ORDER BY id"))
        ended, *others = [tuple(row) for row in found]
    engine.dispose()
    assert (ended[0] > 1.0, ended[1]) == (True, "")
    assert others == [(5.0, ""), (None, "")]


def config_of(part: Part) -> Config:
    """Return where the migrations of a part are."""
    import torchloom.weaver.store.migrations as migrations

    folder = Path(migrations.__file__).parent
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("version_locations", str(folder / part))
    config.set_main_option("path_separator", "newline")
    return config


def test_a_database_with_rows_is_opened_again_with_its_rows(place: DatabasePlace) -> None:
    first = open_store(place)
    first.state.put(JobRow("j1", "gpt"))
    first.close()

    second = open_store(place)

    assert second.state.find(JobRow) == [JobRow("j1", "gpt")]
    second.close()


def test_an_upgrade_that_breaks_off_leaves_nothing_behind(place: DatabasePlace) -> None:
    engine = engine_of(place, "state")
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if place.folder is None:
            connection.execute(sa.text("CREATE SCHEMA state"))
        connection.execute(sa.text("CREATE TABLE facts (name text)"))  # stands in the way

    with pytest.raises(sa.exc.DBAPIError):
        upgrade(engine, "state")

    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["facts"]
    engine.dispose()


def test_a_newer_database_is_left_alone_and_said_so(place: DatabasePlace) -> None:
    open_store(place).close()
    engine = engine_of(place, "state")
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'state_99'"))
    engine.dispose()

    with pytest.raises(SchemaNewer, match="'state_99', which this torchloom does not know"):
        open_store(place)


def test_a_database_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    nowhere = DatabasePlace(None, f"postgresql://ann:secret@/loom?host={tmp_path}")

    with pytest.raises(DatabaseUnreachable, match="cannot open the database") as caught:
        open_store(nowhere)

    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database, but long enough to be looked at" * 9)

    with pytest.raises(DatabaseDamaged, match=r"state\.db is damaged"):
        open_store(DatabasePlace(tmp_path))
