"""Connections of SQLite: what one thread does leaves alone what others are reading."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from torchloom.weaver.store import DatabasePlace, open_store
from torchloom.weaver.store.engine import engine_of
from torchloom.weaver.store.series.records import RecordRemoval


def test_a_reader_finishes_though_others_read_and_the_engine_is_closed(tmp_path: Path) -> None:
    engine = engine_of(DatabasePlace(tmp_path), "state")
    with engine.connect() as reading:
        threads = [threading.Thread(target=_read, args=(engine,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        closing = threading.Thread(target=engine.dispose)
        closing.start()
        closing.join()
        assert reading.execute(sa.text("SELECT 1")).scalar() == 1
    engine.dispose()


@pytest.mark.process
def test_another_process_that_closes_a_database_leaves_the_log_of_its_writer(
    tmp_path: Path,
) -> None:
    store = open_store(DatabasePlace(tmp_path))
    log = tmp_path / "records.db-wal"
    before = log.stat().st_ino
    store.ingest().close()  # each of these opens the file once more
    RecordRemoval(DatabasePlace(tmp_path))

    words = f"import sqlite3; sqlite3.connect({str(tmp_path / 'records.db')!r}).execute(SQL)"
    subprocess.run(
        [sys.executable, "-c", words.replace("SQL", "'PRAGMA user_version'")], check=True
    )

    assert log.stat().st_ino == before
    assert store.records.received() == []
    with sqlite3.connect(tmp_path / "records.db") as reader:
        assert reader.execute("PRAGMA quick_check").fetchone() == ("ok",)
    store.close()


def _read(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT 1")).all()
