"""Connections of SQLite: what one thread does leaves alone what others are reading."""

import threading
from pathlib import Path

import sqlalchemy as sa

from torchloom.weaver.store import Place
from torchloom.weaver.store.engine import engine_of


def test_a_reader_finishes_though_others_read_and_the_engine_is_closed(tmp_path: Path) -> None:
    engine = engine_of(Place(tmp_path), "state")
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


def _read(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT 1")).all()
