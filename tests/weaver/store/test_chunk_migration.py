"""A database with a row a point becomes one with chunks, point by point, all or none."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from torchloom.messages.plane import VERSION, Head, Metrics
from torchloom.weaver.store import DatabasePlace, NumberedBatch, open_store
from torchloom.weaver.store.engine import engine_of
from torchloom.weaver.store.rows import PointRow
from torchloom.weaver.store.series import curves

_POINTS = "INSERT INTO metrics (series, step, generation, time, value) VALUES (:s, :t, :g, :w, :v)"


def older(place: DatabasePlace) -> sa.Engine:
    """Return a database as the version before had it."""
    import torchloom.weaver.store.migrations as migrations

    folder = Path(migrations.__file__).parent
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("version_locations", str(folder / "records"))
    config.set_main_option("path_separator", "newline")
    engine = engine_of(place, "records")
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if place.folder is None:
            connection.execute(sa.text("CREATE SCHEMA records"))
        config.attributes["connection"] = connection
        command.upgrade(config, "records_2")
    return engine


def fill(engine: sa.Engine, points: list[dict[str, Any]]) -> None:
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        for key, name in ((1, "loss"), (2, "empty")):
            words = "INSERT INTO series (id, job, name, rank, role) VALUES (:k, 'j', :n, 3, 'r')"
            connection.execute(sa.text(words), {"k": key, "n": name})
        connection.execute(sa.text(_POINTS), points)


def point(step: int, generation: int, value: float | None) -> dict[str, Any]:
    return {"s": 1, "t": step, "g": generation, "w": step + 0.5, "v": value}


def test_points_of_an_older_database_come_back_as_they_were(place: DatabasePlace) -> None:
    engine = older(place)
    first = [point(step, 0, None if step == 7 else step / 2) for step in range(-5, 9000)]
    again = [point(step, 4, -float(step)) for step in range(4000, 6000)]
    fill(engine, first + again)
    engine.dispose()

    store = open_store(place)

    expected = [
        PointRow("loss", 3, step, generation, step + 0.5, value, "r")
        for step in range(-5, 9000)
        for generation, value in [(4, -float(step)) if 4000 <= step < 6000 else (0, step / 2)]
    ]
    expected[12] = PointRow("loss", 3, 7, 0, 7.5, float("nan"), "r")
    assert list(map(repr, store.records.points("j"))) == list(map(repr, expected))
    (curve,) = curves.curves(store.records, "j", buckets=50)
    assert (sum(curve.count), sum(curve.nans), min(curve.min)) == (9005, 1, -5999.0)
    with store.records.snapshot() as reader:
        assert reader.rows("SELECT sum(count) FROM chunks WHERE kind = 2") == [(2000,)]
    store.close()


def test_what_comes_after_the_migration_goes_on_the_same_curve(place: DatabasePlace) -> None:
    engine = older(place)
    fill(engine, [point(step, 0, 1.0) for step in range(10)])
    engine.dispose()
    store = open_store(place)
    head = Head(VERSION, "j", 1, 3, "i", "r")

    ingest = store.ingest()
    ingest.write(
        [NumberedBatch(head, 1, [Metrics(head, ("loss",), ((9, 0.0, 2.0), (10, 0.0, 2.0)))])]
    )
    ingest.close()

    found = [(each.step, each.generation, each.value) for each in store.records.points("j")]
    assert found == [*((step, 0, 1.0) for step in range(9)), (9, 1, 2.0), (10, 1, 2.0)]
    store.close()


def test_a_migration_that_breaks_off_leaves_every_point_where_it_was(place: DatabasePlace) -> None:
    engine = older(place)
    fill(engine, [point(step, 0, 1.0) for step in range(100)])
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(sa.text("CREATE TABLE spans (first bigint)"))  # stands in the way
    engine.dispose()

    with pytest.raises(Exception, match="spans"):
        open_store(place)

    engine = engine_of(place, "records")
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM metrics")) == 100
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == "records_2"
        assert not sa.inspect(connection).has_table("chunks")
    engine.dispose()
