"""A plane on Postgres is copied while it commits, and brought back into an empty database."""

import contextlib
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from torchloom.messages.plane import VERSION, Event, Head
from torchloom.weaver.store import DatabasePlace, NumberedBatch, open_store
from torchloom.weaver.store.backup import BackupDamaged, CopyPace, NothingToBackUp, back_up
from torchloom.weaver.store.daily_backup import BackupRules, DailyCopy, findings
from torchloom.weaver.store.postgres_backup import DatabaseNotEmpty, TablesUnreadable
from torchloom.weaver.store.restoration import OtherDatabase, SalvageOnPostgres, restore, salvage
from torchloom.weaver.store.rows import Fact
from torchloom.weaver.store.schema import SchemaNewer

from ...adversary.test_databases import loom, rewritten
from ...harness.fresh_databases import fresh
from ...harness.postgres_server import new_database

pytestmark = pytest.mark.process
FAST = CopyPace(rest=0.0, least=0.0)
_COUNT = itertools.count()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a state folder with keys and without databases."""
    (tmp_path / "loom" / "plane" / "keys").mkdir(parents=True, mode=0o700)
    (tmp_path / "loom" / "plane" / "keys" / "ca.key").write_text("a key")
    (tmp_path / "loom" / "plane" / "admin.token").write_text("a token\n")
    return tmp_path / "loom"


@pytest.fixture
def empty(postgres: str) -> str:
    """Return an empty database."""
    return new_database(postgres, f"empty_{next(_COUNT)}")


@pytest.fixture
def url(postgres: str, made_database: str) -> str:
    """Return a database of a plane, with something in it."""
    made = new_database(postgres, f"plane_{next(_COUNT)}", made_database)
    store = open_store(DatabasePlace(None, made))
    store.state.put(Fact("what", "kept"), Fact("\\N 'tab'\t\n", {"é": None}))
    with contextlib.closing(store.ingest()) as ingest:
        for number in range(1, 200):
            ingest.write(events(number))
    store.close()
    return made


def events(number: int) -> list[NumberedBatch]:
    head = Head(VERSION, "j", 0, 0, "i")
    return [NumberedBatch(head, number, [Event(head, "x", number, 0.0, {"filling": "y" * 500})])]


def content(url: str) -> dict[str, Any]:
    """Return every row of both schemas and the next value of each sequence, by psycopg alone."""
    import psycopg

    found: dict[str, Any] = {}
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables"
            " WHERE schemaname IN ('state', 'records') ORDER BY 1, 2"
        ).fetchall()
        for schema, table in tables:
            words = f'SELECT * FROM {schema}."{table}"'
            found[f"{schema}.{table}"] = sorted(map(repr, connection.execute(words.encode())))
        sequences = connection.execute(
            "SELECT schemaname, sequencename, last_value FROM pg_sequences ORDER BY 1, 2"
        )
        found["sequences"] = sequences.fetchall()
        indexes = connection.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname IN ('state', 'records') ORDER BY 1"
        )
        found["indexes"] = indexes.fetchall()
    return found


def test_a_backup_brings_back_every_row_of_both_schemas_and_the_keys(
    url: str, empty: str, home: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"

    made = loom("backup", "--json", LOOM_HOME=str(home), LOOM_DATABASE=url)
    told = json.loads(made.stdout)
    env = {"LOOM_HOME": str(other), "LOOM_DATABASE": empty}
    done = loom("restore", "--json", told["file"], **env)

    assert done.returncode == 0, done.stderr
    assert content(empty) == content(url)
    assert len(content(url)["records.events"]) == 199
    assert (other / "plane" / "keys" / "ca.key").read_text() == "a key"
    assert (other / "plane" / "admin.token").read_text() == "a token\n"
    assert Path(told["file"]).stat().st_mode & 0o777 == 0o600
    again = loom("restore", told["file"], **env)
    assert again.returncode == 2
    assert "tables in its schema 'state'" in again.stderr
    assert content(empty) == content(url)


def test_a_backup_is_one_moment_of_both_schemas(url: str, empty: str, tmp_path: Path) -> None:
    over, number = threading.Event(), 200
    store = open_store(DatabasePlace(None, url))

    def commit() -> None:
        nonlocal number
        with contextlib.closing(store.ingest()) as ingest:
            while not over.is_set():
                store.state.put(Fact("left", number), Fact("right", number))
                ingest.write(events(number))
                number += 1

    def rest(_: float) -> None:
        begun = number
        while number < begun + 3:  # each pause sees commits
            over.wait(0.001)

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        place = DatabasePlace(None, url)
        back_up(place, tmp_path, tmp_path / "copy.tar", CopyPace(sleep=rest))
    finally:
        over.set()
        thread.join()
        store.close()
    restore(tmp_path / "copy.tar", DatabasePlace(None, empty), tmp_path / "other")

    found = rows(empty)
    assert found["left"] == found["right"]
    assert found["events"] == list(range(1, found["upto"] + 1))
    assert abs(int(found["left"] or 199) - found["upto"]) <= 1  # the two schemas, too
    assert found["upto"] < number - 1


def rows(url: str) -> dict[str, Any]:
    import psycopg

    with psycopg.connect(url) as connection:
        facts = connection.execute("SELECT name, value FROM state.facts").fetchall()
        numbers = connection.execute("SELECT number FROM records.events ORDER BY number").fetchall()
        upto = connection.execute("SELECT upto FROM records.received").fetchone()
    assert upto is not None
    found: dict[str, Any] = {"left": None, "right": None, **dict(facts)}
    return {**found, "events": [row[0] for row in numbers], "upto": upto[0]}


def test_a_plane_that_is_restored_counts_on(url: str, empty: str, tmp_path: Path) -> None:
    back_up(DatabasePlace(None, url), tmp_path, tmp_path / "copy.tar", FAST)

    restore(tmp_path / "copy.tar", DatabasePlace(None, empty), tmp_path / "other")

    store = open_store(DatabasePlace(None, empty))
    with contextlib.closing(store.ingest()) as ingest:
        ingest.write(events(200))
    store.state.put(Fact("what", "new"))
    store.close()
    assert rows(empty)["events"] == list(range(1, 201))


def test_a_restore_that_fails_leaves_the_database_empty(
    url: str, empty: str, home: Path, tmp_path: Path
) -> None:
    place, copy = DatabasePlace(None, url), tmp_path / "copy.tar"
    back_up(place, tmp_path, copy, FAST)
    cut = copy.read_bytes()
    (tmp_path / "cut.tar").write_bytes(cut[: len(cut) // 2])
    newer = rewritten(copy, schemas={"state": "state_99", "records": "records_3"})

    for path, kind in ((tmp_path / "cut.tar", BackupDamaged), (newer, SchemaNewer)):
        with pytest.raises(kind):
            restore(path, DatabasePlace(None, empty), home)

    assert content(empty) == {"sequences": [], "indexes": []}
    assert (home / "plane" / "keys" / "ca.key").read_text() == "a key"
    assert sorted(path.name for path in (home / "plane").iterdir()) == ["admin.token", "keys"]


def test_what_cannot_be_done_is_said(url: str, empty: str, home: Path, tmp_path: Path) -> None:
    here, files = DatabasePlace(None, url), fresh(tmp_path / "files" / "plane")
    back_up(here, home, tmp_path / "tables.tar", FAST)
    back_up(files, home, tmp_path / "files.tar", FAST)
    gone = DatabasePlace(None, url.replace("/plane_", "/gone_"))

    with pytest.raises(DatabaseNotEmpty, match="make a new one and name it in LOOM_DATABASE"):
        restore(tmp_path / "tables.tar", here, home)
    with pytest.raises(OtherDatabase, match=r"backup of SQLite files.*unset LOOM_DATABASE"):
        restore(tmp_path / "files.tar", DatabasePlace(None, empty), home)
    with pytest.raises(OtherDatabase, match=r"backup of a Postgres database.*set LOOM_DATABASE"):
        restore(tmp_path / "tables.tar", files, tmp_path / "files")
    with pytest.raises(NothingToBackUp):
        back_up(DatabasePlace(None, empty), home, tmp_path / "none.tar", FAST)
    with pytest.raises(TablesUnreadable, match="does not exist"):
        back_up(gone, home, tmp_path / "none.tar", FAST)
    with pytest.raises(SalvageOnPostgres):
        salvage(here, home)


def test_the_daily_copy_is_made_of_postgres_too(url: str, home: Path, tmp_path: Path) -> None:
    now, place = [1_800_000_000.0], DatabasePlace(None, url)
    daily = DailyCopy(place, home, lambda: now[0])

    made = []
    for hours in (0, 23, 24, 48, 72):
        now[0] = 1_800_000_000.0 + hours * 3600
        made.append(daily.carry_out(BackupRules(2, tmp_path / "copies")))

    assert [bool(path) for path in made] == [True, False, True, True, True]
    assert sorted((tmp_path / "copies").iterdir()) == [made[3], made[4]]
    assert [found.name for found in findings(home, place, now[0])] == ["backup"]
