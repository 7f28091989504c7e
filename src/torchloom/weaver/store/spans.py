"""Levels above the chunks: a span sums up to 256 sealed chunks that follow each other."""

from torchloom.weaver.store.buckets import SIZE, coarsen, columns
from torchloom.weaver.store.record_tables import SEALED
from torchloom.weaver.store.sql import Sql

SPAN = 256  # chunks
GROUP = 16  # chunks of a coarse bucket

_LAST = 'SELECT "first", chunks FROM spans WHERE series = ? ORDER BY "first" DESC LIMIT 1'
_GONE = 'DELETE FROM spans WHERE series = ? AND "last" >= ?'
_END = 'SELECT max("last") FROM spans WHERE series = ?'
_ALL = f"SELECT whole FROM chunks WHERE series = ? AND kind = {SEALED}"
_NEW = (
    'INSERT INTO spans (series, "first", "last", chunks, count, coarse, fine)'
    " VALUES (?,?,?,?,?,?,?)"
)


def respan(sql: Sql, key: int, since: int) -> None:
    """Sum up the sealed chunks of a series anew, where they changed from a step on."""
    for first, chunks in sql.rows(_LAST, key):
        if chunks < SPAN:
            since = min(since, first)
    sql.many(_GONE, [(key, since)])
    ((end,),) = sql.rows(_END, key)
    after = ("", ()) if end is None else (' AND "first" > ?', (end,))
    found = sql.rows(f'{_ALL}{after[0]} ORDER BY "first"', key, *after[1])
    fine = b"".join(row[0] for row in found)
    size = SPAN * SIZE
    sql.many(_NEW, [_row(key, fine[at : at + size]) for at in range(0, len(fine), size)])


def _row(key: int, fine: bytes) -> tuple[int, int, int, int, int, bytes, bytes]:
    known = columns(fine)
    ends, count = (known.step_first[0], known.step_last[-1]), sum(known.count)
    return (key, *ends, len(known), count, coarsen(fine, GROUP), fine)
