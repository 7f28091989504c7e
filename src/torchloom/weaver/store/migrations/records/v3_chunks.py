"""Points in chunks a series, with levels; those that have a row each are put into them."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from torchloom.weaver.store.series.chunks import Chunks
from torchloom.weaver.store.series.points import Points, pack

revision = "records_3"
down_revision = "records_2"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
BYTES = ("whole", "coarse", "fine", "data")
AT_ONCE = 1 << 16


class AlembicSql:
    """What the writer of chunks says, within the migration."""

    def __init__(self) -> None:
        self._connection = op.get_bind()
        self._is_sqlite = self._connection.dialect.name == "sqlite"
        self.append = "CAST(data || ? AS BLOB)" if self._is_sqlite else "data || ?"

    def rows(self, words: str, *values: Any) -> Sequence[Sequence[Any]]:
        return self._connection.exec_driver_sql(self._marked(words), values).all()

    def many(self, words: str, values: Iterable[Sequence[Any]]) -> None:
        for row in values:
            self._connection.exec_driver_sql(self._marked(words), tuple(row))

    def _marked(self, words: str) -> str:
        return words if self._is_sqlite else words.replace("?", "%s")


def upgrade() -> None:
    _tables()
    sql = AlembicSql()
    for (key,) in sql.rows("SELECT id FROM series ORDER BY id"):
        for points in _points(sql, key):
            Chunks(sql, 0, 0).add({key: (len(points), pack(points))})
    op.drop_table("metrics")


def _points(sql: AlembicSql, key: int) -> Iterator[Points]:
    """Yield the points of a series, those of one step together."""
    words = "SELECT step, generation, time, value FROM metrics WHERE series = ?"
    order = f"ORDER BY step, generation LIMIT {AT_ONCE}"
    rows = sql.rows(f"{words} {order}", key)
    while rows:
        steps, generations, times, values = zip(*rows, strict=True)
        numbers = [math.nan if value is None else value for value in values]
        yield Points(
            array("q", steps), array("q", generations), array("d", times), array("d", numbers)
        )
        last = (steps[-1], generations[-1])
        rows = sql.rows(f"{words} AND (step, generation) > (?, ?) {order}", key, *last)


def _number(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, NUMBER, nullable=False) for name in names]


def _key(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, NUMBER, primary_key=True, autoincrement=False) for name in names]


def _bytes(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.LargeBinary, nullable=nullable) for name in names]


def _tables() -> None:
    for name in ("number", "loose", "room"):
        op.add_column("series", sa.Column(name, NUMBER, nullable=False, server_default="0"))
    op.create_table(
        "arrivals",
        *_key("number"),
        sa.Column("job", sa.Text, nullable=False),
        *_number("points", "size"),
        *_bytes("data"),
    )
    op.create_index("arrivals_by_job", "arrivals", ["job", "number"])
    op.create_table("progress", *_key("id"), *_number("last", "merged", "waiting", "dropped"))
    op.execute("INSERT INTO progress (id, last, merged, waiting, dropped) VALUES (1, 0, 0, 0, 0)")
    op.create_table(
        "chunks",
        *_key("series", "number"),
        *_number("kind", "first", "last", "count", "since", "upto"),
        *_bytes("whole", "coarse", "fine", nullable=True),
        *_bytes("data"),
    )
    columns = ["series", "kind", "first", "last", "count", "number"]
    op.create_index("chunks_by_step", "chunks", columns)
    op.create_table(
        "spans",
        *_key("series", "first"),
        *_number("last", "chunks", "count"),
        *_bytes("coarse", "fine"),
    )
    if op.get_bind().dialect.name == "postgresql":
        _as_they_are()


def _as_they_are() -> None:
    """Have Postgres not try to compress numbers: it takes long and gains little."""
    held = {"arrivals": ("data",), "chunks": BYTES, "spans": ("coarse", "fine")}
    for table, columns in held.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
