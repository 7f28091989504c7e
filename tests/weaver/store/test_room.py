"""The log of `state` has its length from the start, and nothing of that is seen in the database."""

import sqlite3
from pathlib import Path

from torchloom.weaver.store import DatabasePlace, open_store
from torchloom.weaver.store.engine import PAGES
from torchloom.weaver.store.rows import EventRow


def test_commits_do_not_lengthen_the_log(tmp_path: Path) -> None:
    store = open_store(DatabasePlace(tmp_path))
    log = tmp_path / "state.db-wal"
    before = log.stat().st_size

    for number in range(100):
        store.state.note(EventRow(kind=f"event-{number}"))

    assert log.stat().st_size == before >= (PAGES - 100) * 4096
    assert len(store.state.happened()) == 100
    store.close()


def test_the_room_is_not_part_of_the_database(tmp_path: Path) -> None:
    open_store(DatabasePlace(tmp_path)).close()
    small = (tmp_path / "state.db").stat().st_size

    open_store(DatabasePlace(tmp_path)).close()

    connection = sqlite3.connect(tmp_path / "state.db")
    tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'room'").fetchall()
    whole = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    assert (tables, whole) == ([], [("ok",)])
    assert (tmp_path / "state.db").stat().st_size == small < PAGES * 4096


def test_a_second_store_opens_while_another_writes(tmp_path: Path) -> None:
    first = open_store(DatabasePlace(tmp_path))
    first.state.note(EventRow(kind="one"))

    second = open_store(DatabasePlace(tmp_path))
    first.state.note(EventRow(kind="two"))

    assert [event.kind for event in second.state.happened()] == ["one", "two"]
    first.close()
    second.close()
